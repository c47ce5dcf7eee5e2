// A terminal, for commands whose output differs on one.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <string>

#include "catch.hpp"

class Terminal {
  public:
    Terminal() : fd_(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC)) {
        REQUIRE(fd_ >= 0);
        REQUIRE(::grantpt(fd_) == 0);
        REQUIRE(::unlockpt(fd_) == 0);
    }
    ~Terminal() { ::close(fd_); }
    Terminal(const Terminal &) = delete;
    Terminal &operator=(const Terminal &) = delete;

    // Returns the path that a program opens as its terminal.
    [[nodiscard]] std::string name() const { return ::ptsname(fd_); }
    void resize(unsigned short columns, unsigned short height = 24) const {
        const winsize size{height, columns, 0, 0};
        REQUIRE(::ioctl(fd_, TIOCSWINSZ, &size) == 0);
    }
    void type(const std::string &text) const {
        REQUIRE(::write(fd_, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
    }
    // Reads on until the new output contains `text`. Returns all output so far.
    const std::string &until(const std::string &text) {
        const std::size_t from = said_.size();
        while (said_.find(text, from) == std::string::npos)
            if (!more()) FAIL("no '" << text << "' in:\n" << said_.substr(from));
        return said_;
    }
    // Reads until no process has the terminal open any more. Returns all output.
    const std::string &all() {
        while (more()) {
        }
        return said_;
    }

  private:
    bool more() {
        pollfd readable{fd_, POLLIN, 0};
        char block[4096];
        const ssize_t got = ::poll(&readable, 1, 30'000) > 0 ? ::read(fd_, block, sizeof block) : 0;
        if (got > 0) said_.append(block, static_cast<std::size_t>(got));
        return got > 0;
    }

    int fd_;
    std::string said_;
};
