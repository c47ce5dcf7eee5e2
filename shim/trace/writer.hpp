// The thread curb-trace, which formats and writes the records. It runs from the first trace on, with all signals
// blocked. It polls the ring every 20 ms, and is woken sooner if the ring fills.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include "trace/record.hpp"

namespace curb::shim::trace {

// The state of the trace, shared by the policy watcher, the writer thread and the status reply.
struct State {
    std::mutex mutex;
    std::string asked;        // trace.file as in the policy; empty if it names none
    std::string file;         // the same, absolute and with the pid
    std::string error;        // why events are not written; empty if they are
    bool ended = false;       // true if that error ended the trace
    bool unsaid = false;      // true until the error is logged
    std::uint64_t begun = 0;  // number of traces so far

    std::uint64_t events = 0, dropped = 0;              // of the current trace
    std::uint64_t flushes_asked = 0, flushes_done = 0;  // since the start
};
// Never destroyed: curb-trace uses it until the process is gone.
State &state() noexcept;

namespace writer {

// Starts the thread if needed. False if that fails.
bool start() noexcept;
// Waits until the ring's present records are in the file: up to 5 s while records leave the ring, and 0.5 s if none
// does. Returns how many are still in the ring, 0 if all are in the file; nullopt if this process has no such thread.
[[gnu::cold]] std::optional<std::uint64_t> flush() noexcept;
// Notes that a fork child has no such thread. Async-signal-safe.
void in_fork_child() noexcept;

}  // namespace writer
}  // namespace curb::shim::trace
