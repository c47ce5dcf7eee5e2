// One question over a connection and its answer, as far as it goes without waiting: for whoever polls one connection or
// many. Private to control/.
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
    // For poll; -1: none.
    [[nodiscard]] int left() const;
    [[nodiscard]] bool passed() const { return Clock::now() >= end_; }

  private:
    using Clock = std::chrono::steady_clock;
    Clock::time_point end_;
};

// A process ends in this time once its socket has closed, unless it lives on without it.
inline constexpr std::chrono::milliseconds kEnding{500};
// Milliseconds until what takes nobody in, or is about to end, is tried again.
inline constexpr int kAgain = 5;
// Milliseconds between looks whether a process that is waited for has ended: its end closes the connection, unless that
// was duplicated into a child by other means than fork.
inline constexpr int kLook = 1000;

class Exchange {
  public:
    enum class State : std::uint8_t {
        under_way,
        closed,    // the other side has hung up
        answered,  // by a reply, or by what is none: a Failure
    };
    // `line`: the request with its newline, which must live as long.
    Exchange(int pid, Descriptor connection, std::string_view line)
        : pid_(pid), connection_(std::move(connection)), unsent_(line) {}

    // Sends and reads what can be at once. May throw std::bad_alloc.
    State go_on();
    [[nodiscard]] int descriptor() const { return connection_.number(); }
    // What to poll for.
    [[nodiscard]] short events() const;
    // Once it is answered.
    [[nodiscard]] Reply take() { return std::move(reply_); }

  private:
    State read();

    int pid_;
    Descriptor connection_;
    std::string_view unsent_;
    Lines lines_{kLongestReply};
    Reply reply_;
};

// Why there is no answer after `patience`, of a process that lives.
std::string late_text(int pid, std::chrono::milliseconds patience);
// Why it could not be asked.
std::string busy_text(int pid);
// Why there is none though the connection is closed: it `ended`, or lives on.
std::string closed_text(int pid, bool ended);

}  // namespace curb::control
