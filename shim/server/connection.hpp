// One client of the control socket: reads and answers requests, a line each, one at a time. Used only by the control
// thread.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "control/descriptor.hpp"
#include "control/lines.hpp"
#include "control/messages.hpp"
#include "threads/own_socket.hpp"

namespace curb::shim {

class Connection {
  public:
    using Clock = std::chrono::steady_clock;

    // The time that a client has to send a request or to read the answer. The time to serve a request does not count.
    static constexpr std::chrono::seconds kIdleLimit{5};

    // `peer`: the process at the other end; 0 if it is not visible here.
    Connection(OwnSocket socket, std::uint64_t id, pid_t peer, Clock::time_point now) noexcept
        : socket_(std::move(socket)), id_(id), peer_(peer), since_(now) {}

    [[nodiscard]] std::uint64_t id() const noexcept { return id_; }
    [[nodiscard]] pid_t peer() const noexcept { return peer_; }
    [[nodiscard]] int number() const noexcept { return socket_.number(); }
    // Returns the events for poll.
    [[nodiscard]] short events() const noexcept;
    // Returns when the client's time is over. nullopt while it waits for an answer.
    [[nodiscard]] std::optional<Clock::time_point> until() const noexcept;
    // True if the connection must be closed.
    [[nodiscard]] bool done() const noexcept { return state_ == State::done; }

    // Reads or writes as far as possible, after poll returned `events`. Throws std::bad_alloc.
    void on(short events, Clock::time_point now);
    // Returns the next complete request. nullopt if there is none, or the last one has not been answered. If a line is
    // too long, answers with an error and closes the connection.
    std::optional<std::string> line(Clock::time_point now);
    // Answers the request. `last`: then closes the connection.
    void answer(const control::Reply &reply, Clock::time_point now, bool last = false);
    // Answers the request, with a descriptor beside the first byte.
    void answer(const control::Reply &reply, control::Descriptor beside, Clock::time_point now);

  private:
    enum class State { reading, waiting, answering, done };

    void read();
    void write(Clock::time_point now);
    ssize_t send_some();

    OwnSocket socket_;
    std::uint64_t id_;
    pid_t peer_;
    Clock::time_point since_;  // when the client last connected or got an answer
    State state_ = State::reading;
    bool last_ = false;
    control::Lines in_{control::kLongestRequest};
    std::string out_;
    control::Descriptor beside_;  // to be sent with the next byte; empty: none
};

}  // namespace curb::shim
