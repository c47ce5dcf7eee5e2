// Our threads: one runs releases when it is woken, one watches the policy file, one serves the control socket
// (server.hpp). Started by the first successful cuInit, never joined: they end with the process.
#pragma once

#include "release/plan.hpp"

namespace curb::shim::worker {

void start() noexcept;

// The release signal came. Async-signal-safe, but for errno: it posts a semaphore and nothing else.
void wake() noexcept;

// Something may be due from time to time from now on, or sooner than before (periodic.hpp). Leaves errno.
void look() noexcept;

// Asks for a release for another reason. Does not wait; `request.done` is called when it has ended.
void release(release::Request request) noexcept;

}  // namespace curb::shim::worker
