// One client of the control socket: lines in, lines out, one request at a time. Used by the control thread alone.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "control/lines.hpp"
#include "control/messages.hpp"
#include "own_socket.hpp"

namespace curb::shim {

class Connection {
  public:
    using Clock = std::chrono::steady_clock;

    // For asking and for taking the answer; a request's own time does not count.
    static constexpr std::chrono::seconds kPatience{5};

    Connection(OwnSocket socket, std::uint64_t id, Clock::time_point now) noexcept
        : socket_(std::move(socket)), id_(id), since_(now) {}

    [[nodiscard]] std::uint64_t id() const noexcept { return id_; }
    [[nodiscard]] int number() const noexcept { return socket_.number(); }
    // What poll has to look for.
    [[nodiscard]] short events() const noexcept;
    // When the client will have been idle for too long; none: it waits for us.
    [[nodiscard]] std::optional<Clock::time_point> until() const noexcept;
    // Nothing more will come of it: it is to be closed.
    [[nodiscard]] bool done() const noexcept { return state_ == State::done; }

    // poll said so; takes what there is, gives what there is room for. May throw std::bad_alloc.
    void on(short events, Clock::time_point now);
    // The next whole line, once; the client is then answered before it is read any further. A line that is too long
    // has been answered by itself.
    std::optional<std::string> line(Clock::time_point now);
    // The answer to it, at once or later. `last`: nothing more is wanted of this client.
    void answer(const control::Reply &reply, Clock::time_point now, bool last = false);

  private:
    enum class State { reading, waiting, answering, done };

    void read();
    void write(Clock::time_point now);

    OwnSocket socket_;
    std::uint64_t id_;
    Clock::time_point since_;  // when the client was last up to date
    State state_ = State::reading;
    bool last_ = false;
    control::Lines in_{control::kLongestRequest};
    std::string out_;
};

}  // namespace curb::shim
