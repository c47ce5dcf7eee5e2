// A thread of curb's own within the program.
#pragma once

namespace curb::shim::own_thread {

// Runs `body` in a thread that is never joined: signals are the program's threads' business, so all are blocked. False:
// there is none, which is logged.
bool start(void (*body)(), const char *name) noexcept;

}  // namespace curb::shim::own_thread
