// The release signal. The handler writes to the worker's eventfd and nothing else, then calls the program's own
// handler, if it has one: sigaction and signal are interposed for this one signal, so that a handler the program sets
// later does not replace ours but stands behind it, and the program is told of its own handlers only.
#pragma once

namespace curb::shim::signals {

// Takes the signal (0: none) and gives back the one taken before. Not from signal handlers.
void use(int signal) noexcept;

// In a fork child: the program's own action is all that is left. Async-signal-safe.
void restore_program_action() noexcept;

}  // namespace curb::shim::signals
