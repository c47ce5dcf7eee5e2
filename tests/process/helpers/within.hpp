// Waits for a condition. For tests and for the programs that they start.
#pragma once

#include <chrono>
#include <ctime>

// Waits until `condition` is true. False if it is still false at the deadline.
template <class Condition>
bool within(std::chrono::milliseconds deadline, Condition condition) {
    const auto until = std::chrono::steady_clock::now() + deadline;
    while (!condition()) {
        if (std::chrono::steady_clock::now() > until) return false;
        const timespec moment{0, 1'000'000};
        nanosleep(&moment, nullptr);  // not sleep_for, which never ends in a storm of signals
    }
    return true;
}
