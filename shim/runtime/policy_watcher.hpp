// The thread curb-policy: follows the policy file and the machine's ceiling and puts each new text in force, and reads
// them again when it is asked to. A file may hang, as on a network; nobody waits for this thread.
#pragma once

#include <functional>
#include <string>

#include "config/load.hpp"
#include "control/messages.hpp"

namespace curb::shim::policy_watcher {

// Starts the thread, if there is anything to follow. Once, by the first successful cuInit.
void start() noexcept;

// Has all files read again, at once, whether their text is new or not. `done` is told on the thread what came of it.
// False: there is no thread, and nothing to read. May throw std::bad_alloc.
bool reload(std::function<void(const control::Reply &)> done);

// What there is to say where it would be in vain. May throw std::bad_alloc.
std::string nothing_to_read();

// The policy cannot be used from the start.
void cannot_be_used(const config::Diagnostics &why) noexcept;
// Why the newest text of a file is not in force; empty: it is. May throw std::bad_alloc.
std::string fault();

}  // namespace curb::shim::policy_watcher
