// Waiting for room: a request that does not fit now may be held for a while (growth.wait). Whoever makes room says so
// here.
//
// Nobody who waits holds a lock that a free, a release or an edit needs, nor is within an operation of a ledger.
#pragma once

#include <cstdint>

#include "policy/duration.hpp"

namespace curb::shim::room {

// Memory came back, an allowance grew or the policy was edited: whoever waits looks again. Costs one load while nobody
// waits. Thread-safe.
void changed() noexcept;

// The time that one request waits, over all its attempts. Belongs to one thread; costs nothing until it waits.
class Wait {
  public:
    Wait() noexcept = default;
    ~Wait();
    Wait(const Wait &) = delete;
    Wait &operator=(const Wait &) = delete;

    // Before each attempt: what changes from here on ends the sleep that may follow it.
    void attempt() noexcept;
    // Whether the request may be held on, if it is to be held `most` altogether.
    [[nodiscard]] bool left(policy::Duration most) const noexcept;
    // Sleeps until something has changed since attempt(), for `milliseconds` at the most. Before it has slept, an
    // attempt may have missed a change: the first call only begins to listen and returns at once.
    void sleep(std::uint64_t milliseconds) noexcept;
    // Whether it has been held at all, and for how long.
    [[nodiscard]] bool began() const noexcept { return listening_; }
    [[nodiscard]] std::uint64_t milliseconds() const noexcept;

  private:
    std::uint64_t began_ms_ = 0;
    std::uint64_t seen_ = 0;
    bool listening_ = false;
};

}  // namespace curb::shim::room
