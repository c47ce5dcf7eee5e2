// Waits for a condition. For tests and for the programs that they start.
#pragma once

#include <chrono>
#include <ctime>

// Waits for `condition`, at most so long. The time is a deadline, not a pause.
template <class Condition>
bool within(std::chrono::milliseconds deadline, Condition condition) {
    const auto until = std::chrono::steady_clock::now() + deadline;
    while (!condition()) {
        if (std::chrono::steady_clock::now() > until) return false;
        const timespec moment{0, 1'000'000};
        nanosleep(&moment, nullptr);  // once: std::this_thread::sleep_for goes on for ever in a storm of signals
    }
    return true;
}
