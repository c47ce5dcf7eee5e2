// Starts curb's own threads inside the program.
#pragma once

#include "lifetime.hpp"

namespace curb::shim::own_thread {

// Runs `body` in a detached thread with all signals blocked. Logs and returns false if no thread can be started.
bool start(void (*body)(), const char *name) noexcept;

// Marks the time in which such a thread works. exit() waits up to 0.2 s for that to end before it runs the destructors
// of other libraries: these may be preloads that wrap functions we call here. After that, the constructor never
// returns. Does not nest.
class Awake : NoCopy {
  public:
    Awake() noexcept;
    ~Awake();
};

// Marks a wait within an Awake.
class Asleep : NoCopy {
  public:
    Asleep() noexcept;
    ~Asleep();
};

}  // namespace curb::shim::own_thread
