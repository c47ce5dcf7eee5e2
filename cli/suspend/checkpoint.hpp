// Asks the driver, NVML and the process for facts, and makes the driver's checkpoint calls on a process.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "control/status.hpp"
#include "machine/driver.hpp"
#include "suspend/guards.hpp"
#include "terminal/format.hpp"

namespace curb::cli {

DriverFacts facts_of(const policy::Result<Driver, std::string> &driver, int pid);
// Asks the process for its status. A suspended process answers too. Returns an error if it does not answer.
policy::Result<control::Status, std::string> ask_books(const Target &target);
Books books_of(const Target &target);
// From now on Ctrl-C, SIGTERM and SIGHUP do not end curb, but make interrupted() return true. Ignores SIGTSTP, SIGTTOU
// and SIGPIPE, so that nothing stops curb between two steps.
void hold_interrupts();
bool interrupted();

// Shows a line on stderr, if that is a terminal, and rewrites it once a second: "  3.1 GiB of 8.7 GiB out, 2 s".
class Progress {
  public:
    using Line = std::function<std::string(Seconds so_far)>;
    explicit Progress(Line line);
    ~Progress();  // erases the line
    Progress(const Progress &) = delete;
    Progress &operator=(const Progress &) = delete;
    void refresh();
    // Prints a message on a line of its own.
    void interrupt_with(const std::string &text);
    [[nodiscard]] Seconds so_far() const { return std::chrono::steady_clock::now() - start_; }

  private:
    Line line_;
    bool terminal_, shown_ = false;
    std::chrono::steady_clock::time_point start_, next_;
};

struct Made {
    CUresult error;
    Seconds time;
};
// Makes the call on a thread of its own, since it cannot be interrupted, and waits for its end. Meanwhile shows `line`,
// prints `note` once if Ctrl-C is pressed, and calls `meanwhile` every 50 ms.
Made make(
    const std::function<CUresult()> &call, const Progress::Line &line, const std::string &note,
    const std::function<void()> &meanwhile = [] {});

// The state of a process, by the driver.
struct FoundState {
    CUresult error = CUDA_SUCCESS;  // of the last call on it
    CUprocessState state = CU_PROCESS_STATE_FAILED;
    bool known = false;  // false: the driver does not report the state

    [[nodiscard]] bool is(CUprocessState wanted) const { return known && state == wanted; }
    [[nodiscard]] std::string name() const { return known ? state_name(state) : "unknown"; }
};
// Asks the driver for the state. Tries up to five times.
FoundState state_of(const Driver &driver, int pid);
// Unlocks the process. Tries up to five times: a process that stays locked hangs.
FoundState unlock(const Driver &driver, int pid);

}  // namespace curb::cli
