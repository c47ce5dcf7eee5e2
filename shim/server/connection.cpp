#include "server/connection.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

namespace curb::shim {

short Connection::events() const noexcept {
    switch (state_) {
        case State::reading: return POLLIN;
        case State::answering: return POLLOUT;
        case State::waiting:
        case State::done: break;
    }
    return 0;  // poll always reports POLLHUP: the client has gone
}

std::optional<Connection::Clock::time_point> Connection::until() const noexcept {
    if (state_ == State::waiting) return std::nullopt;
    return since_ + kIdleLimit;
}

void Connection::on(short events, Clock::time_point now) {
    if (!socket_.ours()) {
        state_ = State::done;
        return;
    }
    if (state_ == State::reading && (events & (POLLIN | POLLHUP)) != 0) read();
    if (state_ == State::answering && (events & (POLLOUT | POLLHUP)) != 0) write(now);
    if (state_ == State::waiting && (events & (POLLHUP | POLLERR | POLLNVAL)) != 0) state_ = State::done;
}

void Connection::read() {
    std::array<char, 4096> block;
    const ssize_t got = recv(socket_.number(), block.data(), block.size(), MSG_DONTWAIT);
    if (got > 0)
        in_.take({block.data(), static_cast<std::size_t>(got)});
    else if (got == 0 || (errno != EAGAIN && errno != EINTR))
        state_ = State::done;
}

std::optional<std::string> Connection::line(Clock::time_point now) {
    if (state_ != State::reading) return std::nullopt;
    auto out = in_.next();
    if (out)
        state_ = State::waiting;
    else if (in_.too_long())
        answer(control::Failure{"the request is too long"}, now, true);
    return out;
}

void Connection::answer(const control::Reply &reply, Clock::time_point now, bool last) {
    out_ = control::text(reply) + "\n";
    last_ = last;
    since_ = now;
    state_ = State::answering;
    write(now);  // nearly every answer fits into the socket's buffer
}

void Connection::answer(const control::Reply &reply, control::Descriptor beside, Clock::time_point now) {
    beside_ = std::move(beside);
    answer(reply, now);
}

ssize_t Connection::send_some() {
    constexpr int kFlags = MSG_DONTWAIT | MSG_NOSIGNAL;
    if (!beside_.ours()) return send(socket_.number(), out_.data(), out_.size(), kFlags);
    const int fd = beside_.number();
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof fd)> control{};
    iovec text{out_.data(), out_.size()};
    msghdr message{};
    message.msg_iov = &text;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr *part = CMSG_FIRSTHDR(&message);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(sizeof fd);
    std::memcpy(CMSG_DATA(part), &fd, sizeof fd);
    const ssize_t sent = sendmsg(socket_.number(), &message, kFlags);
    if (sent > 0) beside_ = {};
    return sent;
}

void Connection::write(Clock::time_point now) {
    const ssize_t sent = socket_.ours() ? send_some() : -1;
    if (sent < 0) {
        if (errno != EAGAIN && errno != EINTR) state_ = State::done;
        return;
    }
    out_.erase(0, static_cast<std::size_t>(sent));
    if (!out_.empty()) return;
    since_ = now;
    state_ = last_ ? State::done : State::reading;
}

}  // namespace curb::shim
