// Whether curb is active in this process.
//
// States: asleep (a program that has not used CUDA: nothing is read, opened or started) -> active (after the first
// successful cuInit) -> passing (a fork child of an active process: the driver refuses every call there, and the locks
// and threads it inherited are dead, so every call goes straight on).
#pragma once

#include <atomic>

namespace curb::shim::process {

enum class State : int { asleep, active, passing };
// Constant-initialised: calls come before constructors.
inline constinit std::atomic<State> state{State::asleep};

// Thread-safe, async-signal-safe; one load.
inline bool active() noexcept { return state.load(std::memory_order_acquire) == State::active; }

}  // namespace curb::shim::process
