// Makes the driver's calls on one process. Each runs in a thread of its own, because none can be interrupted; this
// thread shows the progress and notes Ctrl-C.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "driver.hpp"
#include "nvml.hpp"

namespace curb::cli {

// Exit statuses of suspend and resume.
inline constexpr int kRefused = 1;
inline constexpr int kHalfDone = 2;
inline constexpr int kInterrupted = 130;

using Seconds = std::chrono::duration<double>;

// Notes Ctrl-C, SIGTERM and SIGHUP from now on instead of ending. Ignores Ctrl-Z and a terminal or pipe that is gone,
// so that nothing stops curb between two steps.
void hold_interrupts();
bool interrupted();

// A line on stderr, if that is a terminal, rewritten once a second: "  3.1 GiB of 8.7 GiB out, 2 s".
class Progress {
  public:
    using Line = std::function<std::string()>;
    explicit Progress(Line line);
    ~Progress();  // wipes the line
    Progress(const Progress &) = delete;
    Progress &operator=(const Progress &) = delete;
    void look();
    // A line that stays.
    void say(const std::string &text);

  private:
    Line line_;
    bool terminal_, shown_ = false;
    std::chrono::steady_clock::time_point next_;
};

// Makes the call and waits for its end. Prints `note` once if Ctrl-C is pressed meanwhile.
CUresult make(const std::function<CUresult()> &call, Progress &progress, const std::string &note);

// Prints the message, and with `json` the answer: that it is not `done` ("suspended", "resumed"). Returns `status`.
int not_done(const char *done, int pid, bool json, int status, const std::string &state, const std::string &message);

// The state in which a process was left.
struct Left {
    CUresult error = CUDA_SUCCESS;  // of the call that was to bring it there
    CUprocessState state = CU_PROCESS_STATE_FAILED;
    bool known = false;  // whether `state` is what the driver says
};
// Asks the driver, and asks again if it fails.
Left state_of(const Driver &driver, int pid);
// Unlocks the process, and tries again if that fails: a process that stays locked hangs.
Left unlock(const Driver &driver, int pid);

std::string seconds_text(Seconds seconds);                    // "3.9 s"
std::string rate_text(policy::Bytes bytes, Seconds seconds);  // "2.23 GiB/s"

}  // namespace curb::cli
