// The release signal. curb's handler wakes the worker by one futex post, then calls the program's handler if it has
// one. The program sees only its own actions: the action it sets for this signal runs after curb's handler
// (signal_calls.cpp wraps the functions that set one).
//
// All functions except use() are async-signal-safe, because programs call sigaction in their handlers.
#pragma once

#include "threads/program_action.hpp"

namespace curb::shim::signals {

// The state of the release signal. Only with `in_force` does the signal start releases.
enum class SignalState {
    none,
    in_force,
    ignored,   // by the program, or by its parent before exec
    replaced,  // the program installed its own handler by a system call; curb leaves it alone
    refused,   // by the system
};

// Installs curb's handler for `signal` (0: for none) and restores the signal used before. Returns the resulting state.
SignalState use(int signal) noexcept;

// Returns the state of `signal`, which is the signal of the last use().
SignalState state_of(int signal) noexcept;

// True once after the program has set an action for the release signal.
bool program_has_set() noexcept;

// In a fork child: installs the program's own action instead of curb's handler.
void restore_program_action() noexcept;

// Sets the program's action for the release signal and returns the former one in `before`. False if `signal` is not the
// release signal, or not in this process (vfork children share our memory but have their own actions): call libc then.
bool set(int signal, const Action &wanted, Action &before) noexcept;

// Sets whether the release signal interrupts system calls. False as set().
bool set_interrupting(int signal, bool interrupting) noexcept;
// Records the same for another signal, after libc has set it.
void note_interrupting(int signal, bool interrupting) noexcept;
[[nodiscard]] bool interrupting(int signal) noexcept;

// Call it after libc has set an action. If use() ran meanwhile, installs curb's handler before that action.
void after_libc_set(int signal) noexcept;

// Replaces curb's handler in `action` by the program's own action.
void hide(int signal, Action &action) noexcept;

}  // namespace curb::shim::signals
