// Where lines of the log go: a file of curb's own, or the program's stderr. The process is the program's: a line that
// cannot be written is lost, and neither ends the program by a signal (SIGPIPE, SIGXFSZ), nor holds it up (a pipe that
// nobody reads), nor gets into what the program has opened under a number that was curb's or was not stderr's.
// Used by one thread at a time. Throws nothing; changes errno.
#pragma once

#include <string>
#include <string_view>

#include "control/descriptor.hpp"
#include "policy/result.hpp"

namespace curb::shim::log {

// Before main: a program that was started without stderr may open anything under 2.
void check_stderr() noexcept;

class LogFile {
  public:
    // stderr, as far as there is one.
    LogFile() noexcept = default;
    // Made unless it is there; written at its end. Or why not. Of a FIFO it is the writing end, if somebody reads it.
    static policy::Result<LogFile, std::string> open(const std::string &path);

    void write(std::string_view line) noexcept;

  private:
    // The number to write to; -1: none. A file whose number the program has closed is opened again.
    int number() noexcept;

    std::string path_;  // absolute; empty: stderr
    control::Descriptor descriptor_;
    bool full_ = false;  // the last line could not be written for want of a reader: the next one is not waited for
    bool cut_ = false;   // the last line is there in part
};

}  // namespace curb::shim::log
