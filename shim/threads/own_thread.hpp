// Starts curb's own threads inside the program.
#pragma once

#include "base/lifetime.hpp"

namespace curb::shim::own_thread {

// Runs `body` in a detached thread with all signals blocked. Logs and returns false if no thread can be started.
bool start(void (*body)(), const char *name) noexcept;

// True on a thread that start() has made.
bool is_own() noexcept;

// Stops these threads: none begins new work, and those that work get up to 0.2 s to end it. exit() calls it. An exit
// function that must run after it calls it first. Does nothing in a fork child.
void stop_at_exit() noexcept;
// Sets the function that stop_at_exit() calls once, before it stops anything.
void before_stop(void (*call)() noexcept) noexcept;
// True once stop_at_exit() has begun.
bool stopped() noexcept;
// Has stop_at_exit() let the calling thread go on, and those that it starts: calls of later exit handlers need them.
void outlive_stop() noexcept;

// Marks such a thread as working. exit() waits up to 0.2 s until none works, before it runs the destructors of the
// program and of other libraries: a release must not run during these, and preloads may wrap functions that curb calls.
// It waits no longer, because the thread may wait for a lock that the exiting thread holds. Once exit() has begun, the
// constructor never returns, but for outlive_stop(). Does not nest.
class Awake : NoCopy {
  public:
    Awake() noexcept;
    ~Awake();
};

// Marks a wait within an Awake, for which exit() does not wait.
class Asleep : NoCopy {
  public:
    Asleep() noexcept;
    ~Asleep();
};

}  // namespace curb::shim::own_thread
