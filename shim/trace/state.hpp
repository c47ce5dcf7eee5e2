// What is known of the trace that the policy names: shared by those who put policies in force, the thread that writes
// and those who ask.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>

namespace curb::shim::trace {

struct State {
    std::mutex mutex;
    std::string asked;        // as the policy has it; empty: it names none
    std::string file;         // the same, absolute and with the pid in it
    std::string error;        // why nothing is written any more; empty: it is
    bool ended = false;       // by that error
    bool unsaid = false;      // the error has not been logged yet
    std::uint64_t begun = 0;  // how many traces there have been

    // Of the trace that is written; without the lock.
    std::atomic<std::uint64_t> events{0};
    std::atomic<std::uint64_t> dropped{0};
};
// Never destroyed: curb-trace uses it until the process is gone.
State &state() noexcept;

}  // namespace curb::shim::trace
