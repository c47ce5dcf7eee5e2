// Asks the driver, NVML and the process for facts, and makes the driver's calls on one process.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "control/status.hpp"
#include "driver.hpp"
#include "guards.hpp"

namespace curb::cli {

using Seconds = std::chrono::duration<double>;

DriverFacts facts_of(const policy::Result<Driver, std::string> &driver, int pid);
// Asks the process for its status. A suspended process answers too. The error says why there is no answer.
policy::Result<control::Status, std::string> ask_books(const Target &target);
Books books_of(const Target &target);
// Notes Ctrl-C, SIGTERM and SIGHUP from now on instead of ending. Ignores Ctrl-Z and a terminal or pipe that is gone,
// so that nothing stops curb between two steps.
void hold_interrupts();
bool interrupted();

// A line on stderr, if that is a terminal, rewritten once a second: "  3.1 GiB of 8.7 GiB out, 2 s".
class Progress {
  public:
    using Line = std::function<std::string(Seconds so_far)>;
    explicit Progress(Line line);
    ~Progress();  // wipes the line
    Progress(const Progress &) = delete;
    Progress &operator=(const Progress &) = delete;
    void refresh();
    // Prints a line that stays.
    void say(const std::string &text);
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
// Makes the call in a thread of its own, because none can be interrupted, and waits for its end. Shows `line`, and
// prints `note` once if Ctrl-C is pressed meanwhile. Calls `meanwhile` some times a second.
Made make(
    const std::function<CUresult()> &call, const Progress::Line &line, const std::string &note,
    const std::function<void()> &meanwhile = [] {});

// The state in which a process was left.
struct Left {
    CUresult error = CUDA_SUCCESS;  // of the call that was to bring it there
    CUprocessState state = CU_PROCESS_STATE_FAILED;
    bool known = false;  // false: the driver does not tell the state

    [[nodiscard]] bool is(CUprocessState wanted) const { return known && state == wanted; }
    [[nodiscard]] std::string name() const { return known ? state_name(state) : "unknown"; }
};
// Asks the driver, and asks again if it fails.
Left state_of(const Driver &driver, int pid);
// Unlocks the process, and tries again if that fails: a process that stays locked hangs.
Left unlock(const Driver &driver, int pid);

}  // namespace curb::cli
