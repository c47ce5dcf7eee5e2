// What a probe is: it sets up once, and then takes samples whenever it is told to (main.cpp).
#pragma once

#include <chrono>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace bench {

using Words = std::span<const std::string>;

// Does the operation so many times; the nanoseconds of one. Throws Cannot.
using Sample = std::function<double(long count)>;

struct Probe {
    const char *name;
    const char *words;  // that come after the name
    std::size_t least;  // of them
    Sample (*make)(Words words);
};

std::span<const Probe> call_probes();     // calls.cpp: one thread, one call or pair of calls
std::span<const Probe> crowd_probes();    // crowds.cpp: many threads, many live allocations
std::span<const Probe> policy_probes();   // policies.cpp: the policy changes meanwhile
std::span<const Probe> release_probes();  // releases.cpp: memory goes back
std::span<const Probe> start_probes();    // starts.cpp: programs begin

inline long number(const std::string &word) { return std::stol(word); }
inline std::size_t bytes(const std::string &word) { return std::stoull(word); }

using Clock = std::chrono::steady_clock;

inline double nanoseconds_since(Clock::time_point start) {
    return std::chrono::duration<double, std::nano>(Clock::now() - start).count();
}

// An operation in a loop. An eighth of it comes first, untimed: the process has slept since its last sample, while
// others had the processor's caches. `settle` waits for what the operations have left under way.
template <class Operation, class Settle>
Sample loop(Operation operation, Settle settle) {
    return [=](long count) mutable {
        for (long i = 0; i < count / 8; ++i) operation();
        settle();
        const auto start = Clock::now();
        for (long i = 0; i < count; ++i) operation();
        const double time = nanoseconds_since(start);
        settle();
        return time / static_cast<double>(count);
    };
}
template <class Operation>
Sample loop(Operation operation) {
    return loop(operation, [] {});
}

}  // namespace bench
