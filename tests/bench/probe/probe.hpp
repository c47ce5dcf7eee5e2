// A probe prepares its operation once, and then takes samples on request (main.cpp).
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "driver.hpp"

namespace bench {

using Words = std::span<const std::string>;

// Nanoseconds of one operation.
struct Times {
    Times(double found) : ns(found) {}
    double ns;                        // by the functions that a program finds
    std::optional<double> direct_ns;  // by the driver's own functions, in the same sample
    std::string no_direct;            // the reason why both() has no direct_ns
};

// Makes the operation `count` times. Throws Cannot.
using Sample = std::function<Times(long count)>;

struct Probe {
    const char *name;
    std::size_t words;  // the least number of words after the name
    Sample (*make)(Words words);
};

std::span<const Probe> call_probes();    // calls.cpp: one thread, one call or pair of calls
std::span<const Probe> crowd_probes();   // crowds.cpp: many threads, many live allocations
std::span<const Probe> policy_probes();  // policies.cpp: an edit of the policy
std::span<const Probe> start_probes();   // starts.cpp: the start of a program

inline long number(const std::string &word) { return std::stol(word); }
inline std::size_t bytes(const std::string &word) { return std::stoull(word); }

using Clock = std::chrono::steady_clock;

inline double nanoseconds_since(Clock::time_point start) {
    return std::chrono::duration<double, std::nano>(Clock::now() - start).count();
}

// Returns a sample that makes an operation in a loop. An eighth more comes first, untimed, because the process has
// slept and others have used the processor's caches. `settle` waits until the device has finished the operations.
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

// How both() divides a sample: into halves of equal time, by the speeds in the last sample, or of equal operations.
// With many threads and few operations, other numbers of operations would not be comparable.
enum class Halves { of_time, equal };
// Returns a sample that makes the operation by the functions that a program finds, and by the driver's own. The two are
// first in turns. `make` returns a sample that uses the functions that it gets.
template <class Make>
Sample both(Make make, Halves halves = Halves::of_time) {
    const Sample found = make(driver());
    if (const std::string &missing = direct().missing; !missing.empty())
        return [found, missing](long count) {
            Times times = found(count);
            times.no_direct = missing;
            return times;
        };
    return
        [found, own = Sample(make(direct().functions)), own_first = true, as_quick = 1.0, halves](long count) mutable {
            const long half = std::max(count / 2, 1L);
            // At most `count`, which limits how many operations may be queued at once.
            const long own_half = std::clamp(static_cast<long>(static_cast<double>(half) * as_quick), 1L, count);
            double ns = 0, direct_ns = 0;
            own_first = !own_first;
            if (own_first) direct_ns = own(own_half).ns;
            ns = found(half).ns;
            if (!own_first) direct_ns = own(own_half).ns;
            if (halves == Halves::of_time) as_quick = std::min(ns / std::max(direct_ns, 1.0), 2.0);
            Times times = ns;
            times.direct_ns = direct_ns;
            return times;
        };
}

}  // namespace bench
