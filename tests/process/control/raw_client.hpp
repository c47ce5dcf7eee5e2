// A client of the control socket that sends any bytes.
#pragma once

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <string>

class Raw {
  public:
    explicit Raw(const std::string &path) : fd_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        path.copy(address.sun_path, sizeof address.sun_path - 1);
        connected_ = ::connect(fd_, reinterpret_cast<const sockaddr *>(&address), sizeof address) == 0;
    }
    ~Raw() { ::close(fd_); }
    Raw(const Raw &) = delete;
    Raw &operator=(const Raw &) = delete;

    [[nodiscard]] bool connected() const { return connected_; }
    // Returns how many bytes the other side took.
    std::size_t send(const std::string &text) const {
        std::size_t sent = 0;
        while (sent < text.size()) {
            const ssize_t more = ::send(fd_, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
            if (more <= 0) break;
            sent += static_cast<std::size_t>(more);
        }
        return sent;
    }
    void no_more() const { ::shutdown(fd_, SHUT_WR); }
    // Returns everything until the other side closes; ends with "..." if that sends nothing for 20 s.
    [[nodiscard]] std::string answer() const {
        std::string out;
        for (char block[4096];;) {
            pollfd readable{fd_, POLLIN, 0};
            if (::poll(&readable, 1, 20'000) <= 0) return out + "...";
            const ssize_t got = ::recv(fd_, block, sizeof block, 0);
            if (got <= 0) return out;
            out.append(block, static_cast<std::size_t>(got));
        }
    }
    [[nodiscard]] bool closed_within(std::chrono::seconds time) const {
        pollfd readable{fd_, POLLIN, 0};
        char byte = 0;
        return ::poll(&readable, 1, static_cast<int>(time.count() * 1000)) > 0 && ::recv(fd_, &byte, 1, 0) <= 0;
    }

  private:
    int fd_;
    bool connected_ = false;
};
