#include "exchange.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "control/proc.hpp"

namespace curb::control {
namespace {

using std::chrono::milliseconds;

std::string seconds_text(milliseconds time) {
    return time.count() % 1000 == 0 ? std::to_string(time.count() / 1000) + " s" : std::to_string(time.count()) + " ms";
}

}  // namespace

Deadline::Deadline(milliseconds patience)
    : end_(patience >= std::chrono::hours(24 * 365) ? Clock::time_point::max() : Clock::now() + patience) {}

int Deadline::left() const {
    if (end_ == Clock::time_point::max()) return -1;
    const auto left = std::chrono::ceil<milliseconds>(end_ - Clock::now()).count();
    return static_cast<int>(std::clamp<long long>(left, 0, 1'000'000));
}

short Exchange::events() const { return unsent_.empty() ? POLLIN : POLLOUT; }

Exchange::State Exchange::go_on() {
    while (!unsent_.empty()) {
        const ssize_t sent = ::send(connection_.number(), unsent_.data(), unsent_.size(), MSG_NOSIGNAL);
        if (sent > 0) unsent_.remove_prefix(static_cast<std::size_t>(sent));
        if (sent < 0 && errno == EAGAIN) return State::under_way;
        if (sent < 0 && errno != EINTR) unsent_ = {};  // an answer may have come all the same
    }
    return read();
}

Exchange::State Exchange::read() {
    std::array<char, 4096> block;
    for (;;) {
        const ssize_t got = ::recv(connection_.number(), block.data(), block.size(), 0);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && errno == EAGAIN) return State::under_way;
        if (got <= 0) return State::closed;
        lines_.take({block.data(), static_cast<std::size_t>(got)});
        if (lines_.too_long()) {
            reply_ = Failure{process_text(pid_) + " answers more than an answer can be long"};
            return State::answered;
        }
        const auto line = lines_.next();
        if (!line) continue;
        auto reply = parse_reply(*line);
        if (reply)
            reply_ = std::move(reply).value();
        else
            reply_ = Failure{process_text(pid_) + " answers what cannot be read: " + reply.error()};
        return State::answered;
    }
}

std::string late_text(int pid, milliseconds patience) {
    return process_text(pid) + " has not answered for " + seconds_text(patience) +
           (is_stopped(pid) ? ": it is stopped; kill -CONT " + std::to_string(pid)
                            : ": it may be stuck, or the machine overloaded");
}

std::string busy_text(int pid) {
    return process_text(pid) + " takes no more requests: others keep its control socket busy; try again";
}

std::string closed_text(int pid, bool ended) {
    return process_text(pid) +
           (ended ? " ended before it answered" : " closed the connection without an answer; try again");
}

}  // namespace curb::control
