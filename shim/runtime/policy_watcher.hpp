// The thread curb-policy. Watches the policy file and the machine's ceiling, puts each new version in force, and
// reloads them on request. No other thread waits for it, because reading a file may block, as on a network file system.
#pragma once

#include <functional>
#include <string>

#include "config/load.hpp"
#include "control/messages.hpp"

namespace curb::shim::policy_watcher {

// Starts the thread, if there is a file to watch. Called once, by the first successful cuInit.
void start() noexcept;

// Reloads all files now, changed or not, and calls `done(result)` on the watcher thread. False if there is no thread,
// because there is no file. Throws std::bad_alloc.
bool reload(std::function<void(const control::Reply &)> done);

// Returns the error text for when there is no policy file to reload. Throws std::bad_alloc.
std::string nothing_to_read();

// Records that the first policy is invalid.
void note_unusable(const config::Diagnostics &why) noexcept;
// Returns why the newest version of a file is not in force. Empty if it is. Throws std::bad_alloc.
std::string fault();

}  // namespace curb::shim::policy_watcher
