// The state of the trace, shared by the policy watcher, the writer thread and the status reply.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>

namespace curb::shim::trace {

struct State {
    std::mutex mutex;
    std::string asked;        // trace.file as in the policy; empty if it names none
    std::string file;         // the same, absolute and with the pid
    std::string error;        // why events are not written; empty if they are
    bool ended = false;       // true if that error ended the trace
    bool unsaid = false;      // true until the error is logged
    std::uint64_t begun = 0;  // number of traces so far

    // Of the current trace; not under the lock.
    std::atomic<std::uint64_t> events{0};
    std::atomic<std::uint64_t> dropped{0};
};
// Never destroyed: curb-trace uses it until the process is gone.
State &state() noexcept;

}  // namespace curb::shim::trace
