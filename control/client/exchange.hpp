// One request over a connection and its reply, without waiting: the caller polls one connection or many. Private to
// control/.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "control/descriptor.hpp"
#include "control/lines.hpp"
#include "control/messages.hpp"

namespace curb::control {

class Deadline {
  public:
    explicit Deadline(std::chrono::milliseconds patience);
    // Milliseconds for poll. -1: no deadline.
    [[nodiscard]] int left() const;
    [[nodiscard]] bool passed() const { return Clock::now() >= end_; }

  private:
    using Clock = std::chrono::steady_clock;
    Clock::time_point end_;
};

// A process whose socket has closed ends within this time, or lives on without the socket.
inline constexpr std::chrono::milliseconds kEnding{500};
// Milliseconds between attempts to reach a busy process, or one that is about to end.
inline constexpr int kAgain = 5;
// Milliseconds between checks whether the process has ended. Its end closes the connection, unless a child has a copy
// of it by other means than fork.
inline constexpr int kBetweenChecks = 1000;

class Exchange {
  public:
    enum class State : std::uint8_t {
        under_way,
        closed,    // the other side has hung up
        answered,  // by a reply, or by something that cannot be read: a Failure
    };
    // `line`: the request with its newline. Must live as long as this.
    Exchange(int pid, Descriptor connection, std::string_view line)
        : pid_(pid), connection_(std::move(connection)), unsent_(line) {}

    // Sends and reads as much as it can without waiting. May throw std::bad_alloc.
    State go_on();
    [[nodiscard]] int descriptor() const { return connection_.number(); }
    // The events to poll for.
    [[nodiscard]] short events() const;
    // Only once it is answered.
    [[nodiscard]] Reply take() { return std::move(reply_); }

  private:
    State read();

    int pid_;
    Descriptor connection_;
    std::string_view unsent_;
    Lines lines_{kLongestReply};
    Reply reply_;
};

// Returns the sentence for a Failure: a live process has not answered within `patience`.
std::string late_text(int pid, std::chrono::milliseconds patience);
// The same: it takes no connections.
std::string busy_text(int pid);
// The same: it closed the connection without an answer, because it `ended` or although it lives on.
std::string closed_text(int pid, bool ended);

}  // namespace curb::control
