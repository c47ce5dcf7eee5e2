// Processes that stand in for capped ones: each listens on its own control socket and serves it as a test says.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "catch.hpp"
#include "connect.hpp"
#include "control/messages.hpp"
#include "control/runtime_dir.hpp"
#include "in_child.hpp"
#include "local_socket.hpp"
#include "temp_dir.hpp"

namespace stand_in {

namespace fs = std::filesystem;
namespace control = curb::control;

inline int listening(const fs::path &path) {
    // It gets its name once it listens, as curb's sockets do: any curb deletes a socket that refuses a connection.
    const fs::path unnamed = path.native() + ".new";
    const int out = bound_socket(unnamed);
    return out >= 0 && ::listen(out, 16) == 0 && ::rename(unnamed.c_str(), path.c_str()) == 0 ? out : -1;
}

// Sets XDG_RUNTIME_DIR to a folder of its own, until its end.
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

inline fs::path socket_of(const Runtime &runtime, int pid) {
    return runtime.folder() / control::socket_name(*control::name_of(pid));
}

// A process that listens under its own name and calls `what` with its socket.
class StandIn {
  public:
    using What = std::function<void(int listening)>;
    StandIn(const Runtime &runtime, const What &what, const std::function<void()> &before = {})
        : child_(
              [&] {
                  if (before) before();
                  socket_ = listening(socket_of(runtime, ::getpid()));
                  if (socket_ < 0) ::_exit(1);
              },
              [&] { what(socket_); }) {}
    [[nodiscard]] int pid() const { return child_.pid(); }
    [[nodiscard]] std::string text() const { return child_.text(); }
    void stop() const { child_.stop(); }

  private:
    int socket_ = -1;  // in the child
    Child child_;
};

inline int client_of(int listening) { return ::accept4(listening, nullptr, nullptr, SOCK_CLOEXEC); }
// Accepts a client and reads its whole request: closing with unread bytes would reset the connection.
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

// Processes that behave badly, each in its own way, and the errors about them.
struct BadOnes {
    explicit BadOnes(const Runtime &runtime)
        : silent(runtime, [](int listening) { asked(listening); }),
          stopped(runtime, answers),
          gibberish(runtime, [](int listening) { say(asked(listening), "gibberish\n"); }),
          endless(runtime,
                  [](int listening) {
                      const int client = asked(listening);
                      for (const std::string block(1 << 16, 'x');;) say(client, block);
                  }),
          rude(runtime, [](int listening) { ::close(asked(listening)); }),
          dying(runtime,
                [](int listening) {
                    asked(listening);
                    ::_exit(0);
                }),
          busy(runtime, [](int) {}),
          before_us(callers_of(socket_of(runtime, busy.pid()))) {
        stopped.stop();
    }
    // Connects until the socket's queue is full. Returns the connections.
    static std::vector<control::Descriptor> callers_of(const fs::path &socket) {
        std::vector<control::Descriptor> out;
        for (int error = 0; error == 0;) out.push_back(control::connect_to(socket, ::geteuid(), error));
        return out;
    }
    // True if it makes its caller wait.
    [[nodiscard]] bool is_late(int pid) const {
        return pid == silent.pid() || pid == stopped.pid() || pid == busy.pid();
    }
    // `failure` returns the error about a pid. `patience`: how long the caller waited for late ones, in words.
    template <class Failure>
    void check(Failure failure, const std::string &patience) const {
        const std::string late = " has not answered for " + patience + ": it ";
        CHECK(failure(silent.pid()) == silent.text() + late + "may be stuck, or the machine overloaded");
        CHECK(failure(stopped.pid()) ==
              stopped.text() + late + "is stopped; kill -CONT " + std::to_string(stopped.pid()));
        CHECK_THAT(failure(gibberish.pid()), contains(gibberish.text() + " answers what cannot be read: "));
        CHECK(failure(endless.pid()) == endless.text() + " answers more than an answer can be long");
        CHECK(failure(rude.pid()) == rude.text() + " closed the connection without an answer; try again");
        CHECK(failure(dying.pid()) == dying.text() + " ended before it answered");
        CHECK(failure(busy.pid()) ==
              busy.text() + " takes no more requests: others keep its control socket busy; try again");
    }

    StandIn silent, stopped, gibberish, endless, rude, dying, busy;
    std::vector<control::Descriptor> before_us;
};

}  // namespace stand_in
