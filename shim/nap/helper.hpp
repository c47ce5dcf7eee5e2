// Starts the command `curb` from within the program, so that the program does not notice: no SIGCHLD, no child that its
// wait() could find, none of its descriptors, signal handlers or variables.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>

#include "lifetime.hpp"
#include "own_socket.hpp"

namespace curb::shim {

class Helper : NoCopy {
  public:
    // Starts `curb WORDS...` with a socket as its standard input, output and error. start() may throw std::bad_alloc;
    // it returns false if there is no command or no process. One helper at a time.
    Helper() noexcept = default;
    bool start(std::initializer_list<std::string> words);
    // Waits for the helper's end.
    ~Helper() { end(); }

    // Waits for its next line. nullopt if it has closed its output, or once `stop` returns true, which is called every
    // 100 ms.
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
    // Writes a line to its standard input.
    void tell(const char *line) const noexcept;
    // Waits for its end. Returns its exit status: 0 only if it did what it was started for.
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
