// The state of curb in this process.
//
// States, in this order:
//   asleep   the program has not used CUDA; curb has read, opened and started nothing
//   active   from the first successful cuInit
//   passing  in a fork child of an active process. The driver refuses every call there, and curb's locks and threads
//            are dead, so curb forwards every call unchanged. Also in the command `curb`, from its start.
#pragma once

#include <unistd.h>

#include <atomic>

namespace curb::shim::process {

enum class State : int { asleep, active, passing };
// Constant-initialised: calls may come before constructors run.
inline constinit std::atomic<State> state{State::asleep};

// Thread-safe. Async-signal-safe. Costs one load.
inline bool active() noexcept { return state == State::active; }

// The process in which something was begun: a fork child inherits the memory, and not the threads, handlers and files.
// Thread-safe. Async-signal-safe.
class Home {
  public:
    // Notes that it was begun here. False if that was noted before.
    bool set() noexcept { return pid_.exchange(getpid()) == 0; }
    // False also in children of vfork, _Fork and clone, which run no fork handlers; and in a fork child in a new pid
    // namespace, where it may have the same pid.
    [[nodiscard]] bool is_here() const noexcept { return pid_ == getpid() && state != State::passing; }

  private:
    std::atomic<pid_t> pid_{0};
};

}  // namespace curb::shim::process
