// Processes that stand in for capped ones: each listens on a control socket of its own and does with it what a test
// says.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iterator>
#include <string>
#include <string_view>

#include "catch.hpp"
#include "control/messages.hpp"
#include "control/runtime_dir.hpp"
#include "temp_dir.hpp"

namespace stand_in {

namespace fs = std::filesystem;
namespace control = curb::control;

inline int listening(const fs::path &path, int backlog = 16) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.string().copy(address.sun_path, sizeof address.sun_path - 1);
    const int out = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (::bind(out, reinterpret_cast<const sockaddr *>(&address), sizeof address) != 0 || ::listen(out, backlog) != 0)
        return -1;
    return out;
}

// The user's runtime directory, for as long as it lives.
class Runtime {
  public:
    Runtime() {
        fs::create_directory(folder());
        fs::permissions(folder(), fs::perms::owner_all);
        ::setenv("XDG_RUNTIME_DIR", dir_.path().c_str(), 1);
    }
    ~Runtime() { ::unsetenv("XDG_RUNTIME_DIR"); }
    [[nodiscard]] fs::path folder() const { return dir_ / "curb"; }
    [[nodiscard]] const fs::path &path() const { return dir_.path(); }
    [[nodiscard]] std::size_t sockets() const {
        return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder()), fs::directory_iterator()));
    }

  private:
    TempDir dir_;
};

// A process that listens under its own name and does `what` with its socket.
class StandIn {
  public:
    using What = std::function<void(int listening)>;
    StandIn(const Runtime &runtime, const What &what, const std::function<void()> &before = {}) {
        int ready[2];
        REQUIRE(::pipe2(ready, O_CLOEXEC) == 0);
        pid_ = ::fork();
        if (pid_ == 0) {
            ::prctl(PR_SET_PDEATHSIG, SIGKILL);
            ::signal(SIGPIPE, SIG_IGN);
            if (before) before();
            const int socket = listening(runtime.folder() / control::socket_name(*control::name_of(::getpid())));
            if (socket < 0 || ::write(ready[1], "", 1) != 1) ::_exit(1);
            what(socket);
            for (;;) ::pause();
        }
        ::close(ready[1]);
        char byte = 0;
        REQUIRE(::read(ready[0], &byte, 1) == 1);
        ::close(ready[0]);
    }
    ~StandIn() {
        ::kill(pid_, SIGKILL);
        ::waitpid(pid_, nullptr, 0);
    }
    StandIn(const StandIn &) = delete;
    StandIn &operator=(const StandIn &) = delete;
    [[nodiscard]] int pid() const { return pid_; }
    void stop() const {
        ::kill(pid_, SIGSTOP);
        ::waitpid(pid_, nullptr, WUNTRACED);
    }

  private:
    pid_t pid_ = -1;
};

inline int client_of(int listening) { return ::accept4(listening, nullptr, nullptr, SOCK_CLOEXEC); }
// Takes the whole request, so that hanging up loses nothing.
inline int asked(int listening) {
    const int client = client_of(listening);
    char byte = 0;
    while (::recv(client, &byte, 1, 0) > 0 && byte != '\n') {
    }
    return client;
}
inline void say(int client, const std::string &text) {
    for (std::size_t at = 0; at < text.size();) {
        const ssize_t more = ::send(client, text.data() + at, text.size() - at, MSG_NOSIGNAL);
        if (more <= 0) return;
        at += static_cast<std::size_t>(more);
    }
}
inline std::string status_line() {
    control::Status status;
    status.pid = ::getpid();
    status.version = "stand-in";
    return control::text(control::Reply(status)) + "\n";
}
inline void answers(int listening) {
    for (;;) say(asked(listening), status_line());
}

}  // namespace stand_in
