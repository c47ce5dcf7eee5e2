// The thread that makes lines of the records and writes them: curb-trace. It runs from the first trace on, with all
// signals blocked, looks into the ring every 20 ms and sooner when that fills, and is never joined.
#pragma once

#include "record.hpp"

namespace curb::shim::trace::writer {

// Starts the thread, once. False: it could not be.
bool start() noexcept;
// The thread looks now. Leaves errno.
void wake() noexcept;
// Waits until what was in the ring is in the file, but not longer than half a second. False: no thread of ours runs in
// this process.
bool flush() noexcept;
// In a fork child, which has no such thread. Async-signal-safe.
void in_fork_child() noexcept;

}  // namespace curb::shim::trace::writer
