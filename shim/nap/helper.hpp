// Starts the command `curb` so that the program does not notice: no SIGCHLD, and no child that its wait() could find.
// The command gets none of the program's descriptors and signal handlers, is in a session of its own, and has only the
// variables that it needs, as they were at the program's start.
//
// execve gives every process SIGCHLD as its exit signal, so the command cannot be the program's child. Nor can it be an
// orphan: a program that is a subreaper, or process 1 of a container, would get it back; other reapers leave zombies.
// So a stand-in, which shares our memory and never executes anything, is its parent for its whole life.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>

#include "base/lifetime.hpp"
#include "threads/own_socket.hpp"

namespace curb::shim {

class Helper : NoCopy {
  public:
    static constexpr int kNotExecuted = 127;  // exit status if the command could not be executed
    static constexpr int kUnknown = -1;       // if no exit status is known
    static constexpr const char *kNone = "the command curb is not beside libcurb.so, or cannot be started";

    // Copies the variables that helpers will get. Call it before main: later the program may write over them, as those
    // do that set a process title.
    [[gnu::cold]] static void note_environment(const char *const *variables) noexcept;
    // Returns why this process starts no helper, and the remedy. Empty if it does. May throw std::bad_alloc.
    static std::string why_none();

    Helper() noexcept = default;
    // Starts `curb WORDS...` with a socket as its standard input, output and error. False if there is a reason not to
    // (why_none()), or if no process can be started. One helper at a time. May throw std::bad_alloc.
    bool start(std::initializer_list<std::string> words);
    // Hangs up, and waits for the helper's end.
    ~Helper() {
        hang_up();
        end();
    }

    // Waits for the helper's next line. nullopt if it has closed its output. May throw std::bad_alloc.
    std::optional<std::string> line();
    // Returns the next line if it is there. Does not wait.
    std::optional<std::string> line_now();
    // True if no line will come.
    [[nodiscard]] bool has_closed() const noexcept { return closed_; }
    // Writes a line to its standard input. Does not wait. False if that fails: a filter of system calls may forbid it,
    // or the program has closed the socket.
    [[nodiscard]] bool tell(const char *line) const noexcept;
    // Closes the socket. The helper then brings the process back by itself, and ends.
    void hang_up() noexcept;
    // Waits until it ends. Returns its exit status, or kUnknown: 0 only if it succeeded.
    int end() noexcept;

  private:
    std::optional<std::string> take_line();
    // Reads what comes within this time. Returns the number of bytes; sets closed_ if there will be no more.
    std::size_t receive(char *bytes, std::size_t size, int milliseconds) noexcept;

    OwnSocket socket_;
    std::string text_;  // read, and not yet taken
    bool closed_ = false;
    int stand_in_ = 0;  // pid
};

}  // namespace curb::shim
