// Child processes, for work that would change the test's own process for good.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <string>

#include "catch.hpp"

// Runs `work` in a child, which exits with its result. Returns the wait status: 0 if `work` returned 0.
inline int in_child(const std::function<int()> &work) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(work());
    int status = -1;
    REQUIRE(::waitpid(child, &status, 0) == child);
    return status;
}

// A child process. The constructor waits until it has called `first`. Then it calls `then`, and pauses until it is
// killed.
class Child {
  public:
    explicit Child(const std::function<void()> &first = {}, const std::function<void()> &then = {}) {
        int ready[2];
        REQUIRE(::pipe2(ready, O_CLOEXEC) == 0);
        pid_ = ::fork();
        if (pid_ == 0) {
            ::prctl(PR_SET_PDEATHSIG, SIGKILL);
            ::signal(SIGPIPE, SIG_IGN);
            if (first) first();
            if (::write(ready[1], "", 1) != 1) ::_exit(1);
            if (then) then();
            for (;;) ::pause();
        }
        ::close(ready[1]);
        char byte = 0;
        REQUIRE(::read(ready[0], &byte, 1) == 1);
        ::close(ready[0]);
    }
    ~Child() {
        ::kill(pid_, SIGKILL);
        ::waitpid(pid_, nullptr, 0);
    }
    Child(const Child &) = delete;
    Child &operator=(const Child &) = delete;
    [[nodiscard]] int pid() const { return pid_; }
    [[nodiscard]] std::string text() const { return "process " + std::to_string(pid_); }
    void stop() const {
        ::kill(pid_, SIGSTOP);
        ::waitpid(pid_, nullptr, WUNTRACED);
    }

  private:
    pid_t pid_ = -1;
};
