// A thread of curb's own within the program.
#pragma once

namespace curb::shim::own_thread {

// Runs `body` in a thread that is never joined: signals are the program's threads' business, so all are blocked. False:
// there is none, which is logged.
bool start(void (*body)(), const char *name) noexcept;

// What such a thread does besides waiting. exit() waits for it, for a moment, before it runs the destructors of other
// libraries, which may be preloads that stand in front of what is called here; once it has, this never returns. Not
// nested.
class Awake {
  public:
    Awake() noexcept;
    ~Awake();
    Awake(const Awake &) = delete;
    Awake &operator=(const Awake &) = delete;
};

// Within an Awake: a wait.
class Asleep {
  public:
    Asleep() noexcept;
    ~Asleep();
    Asleep(const Asleep &) = delete;
    Asleep &operator=(const Asleep &) = delete;
};

}  // namespace curb::shim::own_thread
