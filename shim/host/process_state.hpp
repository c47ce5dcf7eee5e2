// The state of curb in this process.
//
// States, in this order:
//   asleep   the program has not used CUDA; curb has read, opened and started nothing
//   active   from the first successful cuInit
//   passing  in a fork child of an active process. The driver refuses every call there, and curb's locks and threads
//            are dead, so curb forwards every call unchanged. Also in the command `curb`, from its start.
#pragma once

#include <atomic>

namespace curb::shim::process {

enum class State : int { asleep, active, passing };
// Constant-initialised: calls may come before constructors run.
inline constinit std::atomic<State> state{State::asleep};

// Thread-safe. Async-signal-safe. Costs one load.
inline bool active() noexcept { return state.load(std::memory_order_acquire) == State::active; }

}  // namespace curb::shim::process
