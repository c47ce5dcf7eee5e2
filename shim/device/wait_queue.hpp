// Waiting for room: a request that does not fit now may be held for a while (growth.wait). Whoever makes room says so
// here.
//
// Nobody who waits holds a lock that a free, a release or an edit needs, nor is within an operation of a ledger.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "policy/duration.hpp"
#include "policy/kinds.hpp"
#include "policy/obstacle.hpp"
#include "policy/size.hpp"

namespace curb::shim::wait_queue {

// Memory came back, an allowance grew or the policy was edited: whoever waits looks again. Costs one load while nobody
// waits. Thread-safe.
void changed() noexcept;

// What a thread waits for.
struct Request {
    int ordinal = 0;  // of the device
    policy::Kind kind{};
    policy::Bytes bytes = 0;
    policy::Obstacle why{};  // the limit in its way
};

// A thread that waits, in the list of those.
struct Entry {
    Request request;  // guarded by the list's lock
    int thread = 0;   // its id
    std::uint64_t began_ms = 0;
    std::uint32_t seen = 0;  // changes before its latest attempt
    bool is_long = false;
    Entry *next = nullptr;

    [[nodiscard]] std::uint64_t milliseconds() const noexcept;
};

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
    void sleep(const Request &request, std::uint64_t milliseconds) noexcept;
    // Whether it has been held at all, and for how long.
    [[nodiscard]] bool began() const noexcept { return entry_.has_value(); }
    [[nodiscard]] std::uint64_t milliseconds() const noexcept;
    // True once, when it has been held for a second.
    [[nodiscard]] bool becomes_long() noexcept;

  private:
    std::optional<Entry> entry_;
};

// A request that waits now.
struct Waiting {
    Request request;
    int thread = 0;  // its id
    std::uint64_t milliseconds = 0;
};
// All that wait, the longest first. Thread-safe; may throw std::bad_alloc.
std::vector<Waiting> waiting();

}  // namespace curb::shim::wait_queue
