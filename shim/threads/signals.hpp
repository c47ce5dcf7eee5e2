// The release signal. The handler wakes the worker by one post of a futex, then calls the program's own handler, if
// it has one. The program sees its own actions only: what it sets for this signal stands behind ours (hooks/signals.cpp
// has the ways to set it).
//
// Async-signal-safe but for use(): programs call sigaction in their handlers.
#pragma once

#include "program_action.hpp"

namespace curb::shim::signals {

// How the signal stands. Only `in_force` asks for releases.
enum class Standing {
    none,
    in_force,
    ignored,   // by the program, or by what started it
    replaced,  // past us, by a system call of the program's own; left to it
    refused,   // by the system
};

// Takes the signal (0: none) and gives back the one taken before. For the signal that is taken already: how it stands.
Standing use(int signal) noexcept;

// How a signal stands that use() was called with last.
Standing stands(int signal) noexcept;

// True once after the program has set an action for the signal that is taken.
bool program_has_set() noexcept;

// In a fork child: the program's own action is all that is left.
void restore_program_action() noexcept;

// What the program sets for the signal that is taken. False: it is not taken, or not in this process (vfork children
// share our memory, but have signal actions of their own); libc is to be asked.
bool set(int signal, const Action &wanted, Action &before) noexcept;

// Whether the program wants system calls interrupted by the signal: as set(), for the flag alone.
bool set_interrupting(int signal, bool interrupting) noexcept;
// The same for signals that are not taken, once libc knows it.
void note_interrupting(int signal, bool interrupting) noexcept;
[[nodiscard]] bool interrupting(int signal) noexcept;

// After libc has set an action: if the signal was taken in that moment, the action goes behind ours.
void was_set(int signal) noexcept;

// Our handler is the program's own for everybody else.
void hide(int signal, Action &told) noexcept;

}  // namespace curb::shim::signals
