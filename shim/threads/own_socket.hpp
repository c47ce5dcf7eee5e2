// A socket of one of curb's threads. A fork child closes its inherited copies at once: while it had them open, clients
// of its dead parent would wait for an answer. (exec closes them.)
#pragma once

#include "control/descriptor.hpp"

namespace curb::shim {

class OwnSocket {
  public:
    // False if the process's descriptor limit is below 64: then curb leaves all of them to the program.
    static bool may_be_opened() noexcept;

    OwnSocket() noexcept = default;
    // Takes ownership of an open socket. The object is empty if fd < 0 or if all 32 slots are in use.
    explicit OwnSocket(int fd) noexcept;
    OwnSocket(OwnSocket &&other) noexcept;
    OwnSocket &operator=(OwnSocket &&other) noexcept;
    ~OwnSocket() { forget(); }

    [[nodiscard]] int number() const noexcept { return descriptor_.number(); }
    // See control::Descriptor.
    [[nodiscard]] bool ours() const noexcept { return descriptor_.ours(); }
    explicit operator bool() const noexcept { return slot_ >= 0; }

    // Makes a connected pair, by which one thread wakes another that sleeps in poll. False if that fails (errno).
    static bool pair(OwnSocket &woken, OwnSocket &waker) noexcept;
    // Wakes the thread on the other end. Does nothing if the program has closed this socket. Async-signal-safe.
    void wake() const noexcept;
    // Reads all wake-up bytes. False if the program has closed the other end: poll would then return at once for ever.
    [[nodiscard]] bool drain() const noexcept;

    // In a fork child: closes every socket that the parent has open. Async-signal-safe.
    static void close_in_fork_child() noexcept;

  private:
    void forget() noexcept;

    control::Descriptor descriptor_;
    int slot_ = -1;
};

}  // namespace curb::shim
