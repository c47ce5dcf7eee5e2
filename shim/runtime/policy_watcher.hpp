// The thread curb-policy. Watches the policy file and the machine's ceiling, and puts each new version in force. No
// other thread waits for it, because reading a file may block, as on a network file system.
#pragma once

#include <string>

#include "config/load.hpp"

namespace curb::shim::policy_watcher {

// Starts the thread, if there is a file to watch. Called once, by the first successful cuInit.
void start() noexcept;

// Records that the first policy is invalid.
void note_unusable(const config::Diagnostics &why) noexcept;
// Returns why the newest version of a file is not in force. Empty if it is. Throws std::bad_alloc.
std::string fault();

}  // namespace curb::shim::policy_watcher
