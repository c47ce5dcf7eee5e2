// Our threads: one runs releases when it is woken, one follows the policy's files (follow.hpp), one serves the control
// socket (server.hpp). Started by the first successful cuInit, never joined: they end with the process.
#pragma once

#include <string>

#include "devices.hpp"
#include "plan.hpp"

namespace curb::shim::worker {

void start() noexcept;

// In a fork child, which has none of the threads. Async-signal-safe.
void in_fork_child() noexcept;

// The release signal came. Async-signal-safe: it posts a futex and nothing else. Leaves errno.
void wake() noexcept;

// Something may be due from time to time from now on, or sooner than before (periodic.hpp). Leaves errno.
void look() noexcept;

// What a new policy or cap needs the driver for is to be done (process::settle).
void settle(bool look_closely) noexcept;

// The books are to be held against the devices; server::measured() is called when they have been.
void measure() noexcept;

// The same for one device, of which nobody is told. Leaves errno.
void measure_soon(Device &device) noexcept;

// A line for the log, at level info, from a thread that must not wait for it.
void say(std::string line) noexcept;

// Asks for a release for another reason. Does not wait; `request.done` is called when it has ended. False: there is no
// host memory for the request.
bool release(release::Request request) noexcept;

}  // namespace curb::shim::worker
