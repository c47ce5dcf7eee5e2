// Starts the command `curb` so that the program does not notice: no SIGCHLD, and no child that its wait() could find.
// The command gets none of the program's descriptors and signal handlers, and few of its variables.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>

#include "lifetime.hpp"
#include "own_socket.hpp"

namespace curb::shim {

class Helper : NoCopy {
  public:
    static constexpr int kNotExecuted = 127;  // exit status if the command could not be executed

    Helper() noexcept = default;
    // Starts `curb WORDS...` with a socket as its standard input, output and error. False if the command is missing or
    // no process can be started. One helper at a time. May throw std::bad_alloc.
    bool start(std::initializer_list<std::string> words);
    // Waits for the helper's end.
    ~Helper() { end(); }

    // Waits for the helper's next line. nullopt if it has closed its output, or once `stop()`, called every 100 ms,
    // returns true.
    template <class Stop>
    std::optional<std::string> line(Stop stop) {
        for (;;) {
            if (auto found = take_line()) return found;
            if (closed_ || stop()) return std::nullopt;
            read_for(100);
        }
    }
    std::optional<std::string> line() {
        return line([] { return false; });
    }
    // Writes a line to its standard input. Does not wait. Thread-safe.
    void tell(const char *line) const noexcept;
    // Waits until it ends. Returns its exit status: 0 only if it succeeded.
    int end() noexcept;

  private:
    std::optional<std::string> take_line();
    void read_for(int milliseconds);

    OwnSocket socket_;
    std::string text_;  // read, and not yet taken
    bool closed_ = false;
    int pid_ = 0;
};

}  // namespace curb::shim
