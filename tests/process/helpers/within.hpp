// Waits for a condition. For tests and for the programs that they start.
#pragma once

#include <algorithm>
#include <chrono>
#include <ctime>

// Waits until `condition` is true. False if it is still false at the deadline. Between two looks it pauses for four
// times as long as a look took: many start a process, and the tests beside this one need the processor.
template <class Condition>
bool within(std::chrono::milliseconds deadline, Condition condition) {
    using Clock = std::chrono::steady_clock;
    constexpr std::chrono::nanoseconds kLeast = std::chrono::milliseconds(1), kMost = std::chrono::milliseconds(50);
    const auto until = Clock::now() + deadline;
    for (auto begin = Clock::now(); !condition(); begin = Clock::now()) {
        const auto now = Clock::now();
        if (now > until) return false;
        const timespec moment{0, std::clamp<std::chrono::nanoseconds>(4 * (now - begin), kLeast, kMost).count()};
        nanosleep(&moment, nullptr);  // not sleep_for, which never ends in a storm of signals
    }
    return true;
}
