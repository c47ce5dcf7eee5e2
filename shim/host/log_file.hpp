// The log's output: a file that curb opens, or the program's stderr.
//
// A line that cannot be written is dropped, without effect on the program: no SIGPIPE or SIGXFSZ, and a wait of at most
// 100 ms for a full pipe. A line never goes into a file that the program opened under the number of curb's descriptor,
// or as 2 if it was started without stderr. One thread at a time. Changes errno.
#pragma once

#include <string>
#include <string_view>

#include "control/descriptor.hpp"
#include "policy/values/result.hpp"

namespace curb::shim::log {

// Checks whether descriptor 2 is open. Call it before main: a program started without stderr may open any file as 2.
[[gnu::cold]] void check_stderr() noexcept;

class LogFile {
  public:
    // Writes to stderr, if it was open at the start.
    LogFile() noexcept = default;
    // Opens the file for appending and creates it if needed. Returns the reason if it fails. A FIFO must have a reader.
    static policy::Result<LogFile, std::string> open(const std::string &path);

    void write(std::string_view line) noexcept;

  private:
    // Returns the descriptor to write to; -1 if there is none. Reopens the file if the program closed the descriptor.
    int number() noexcept;

    std::string path_;  // absolute; empty: stderr
    control::Descriptor descriptor_;
    bool full_ = false;  // the pipe was full at the last line, so the next one does not wait
    bool cut_ = false;   // only a part of the last line was written
};

}  // namespace curb::shim::log
