// The control socket. Processes of the same user and of root request status, releases, caps and the gate here. One
// thread, curb-control, serves it, so that it answers even if the driver is stuck or the program keeps the GIL. It
// blocks on its sockets only; for a detailed status and to close the gate it also takes the loader's lock (bypass.hpp).
//
// The program may close curb's descriptors and reuse their numbers (descriptor.hpp). The server checks each before use,
// and stops once one of its own is gone.
#pragma once

namespace curb::shim::server {

// Starts the thread. Called once, by the first successful cuInit.
void start() noexcept;

}  // namespace curb::shim::server
