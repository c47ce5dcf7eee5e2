// The sockets of curb's threads, which each make and use their own. A fork child inherits them, and closes them at
// once: as long as it had them open, whoever asks its dead parent would wait for an answer. (exec closes them by
// itself.)
#pragma once

#include "control/descriptor.hpp"

namespace curb::shim {

class OwnSocket {
  public:
    // False: the process may have so few descriptors that none is kept of them.
    static bool may_be_opened() noexcept;

    OwnSocket() noexcept = default;
    // Takes a socket that has just been opened; less than 0, or more than there is room for: none.
    explicit OwnSocket(int fd) noexcept;
    OwnSocket(OwnSocket &&other) noexcept;
    OwnSocket &operator=(OwnSocket &&other) noexcept;
    ~OwnSocket() { forget(); }

    [[nodiscard]] int number() const noexcept { return descriptor_.number(); }
    // See control::Descriptor.
    [[nodiscard]] bool ours() const noexcept { return descriptor_.ours(); }
    explicit operator bool() const noexcept { return slot_ >= 0; }

    // Two connected ones, with which one thread wakes another that sleeps in poll. False: errno says why not.
    static bool pair(OwnSocket &woken, OwnSocket &waker) noexcept;
    // Wakes whoever sleeps on the other end, unless the program has closed this one. Async-signal-safe.
    void wake() const noexcept;
    // Takes what has woken it. False: the program has closed the other end, and this one would wake for ever.
    [[nodiscard]] bool drain() const noexcept;

    // In a fork child: closes those that the parent has open. Async-signal-safe.
    static void close_in_fork_child() noexcept;

  private:
    void forget() noexcept;

    control::Descriptor descriptor_;
    int slot_ = -1;
};

}  // namespace curb::shim
