// The thread curb-policy. Watches the policy file and the machine's ceiling, and puts each new version in force. No
// other thread waits for it, because reading a file may block, as on a network file system.
#pragma once

#include <string>

#include "config/load.hpp"

namespace curb::shim::policy_watcher {

// Starts the thread, if there is a file to watch. Called once, by the first successful cuInit.
void start() noexcept;

// Records the first policy, or why it is invalid. Call it before start().
void note_first(const policy::Result<config::Loaded, config::Diagnostics> &loaded) noexcept;
// Returns why the newest version of a file is not in force. Empty if it is. Throws std::bad_alloc.
std::string fault();

}  // namespace curb::shim::policy_watcher
