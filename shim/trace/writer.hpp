// The thread curb-trace, which formats and writes the records. It runs from the first trace on, with all signals
// blocked. It polls the ring every 20 ms, and is woken sooner if the ring fills.
#pragma once

#include "record.hpp"

namespace curb::shim::trace::writer {

// Starts the thread if needed. False if that fails.
bool start() noexcept;
// Wakes the thread. Keeps errno.
void wake() noexcept;
// Waits until the ring's present records are in the file, at most 0.5 s. False if this process has no such thread.
bool flush() noexcept;
// Notes that a fork child has no such thread. Async-signal-safe.
void in_fork_child() noexcept;

}  // namespace curb::shim::trace::writer
