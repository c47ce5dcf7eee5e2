// Common to `curb suspend` and `curb resume`: both move one process after the other, and both may end half-way.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "control/suspended.hpp"
#include "machine/selection.hpp"
#include "suspend/checkpoint.hpp"
#include "terminal/json.hpp"

namespace curb::cli {

inline constexpr int kRefused = 1;
inline constexpr int kHalfDone = 2;
inline constexpr int kInterrupted = 130;

// The options that both commands have.
struct MoveOptions {
    Selection selection;
    bool sim = false, json = false;
};

// The process to move, and the ways in which both commands end.
class Moving {
  protected:
    // `what`: "suspend", `done`: "suspended". `answers`: gets the JSON answer; null: prints text.
    Moving(const char *what, const char *done, int pid, std::vector<std::string> *answers);

    // Prints why the process was not moved. Returns `status`.
    [[nodiscard]] int ended(int status, const std::string &state, const std::string &message) const;
    [[nodiscard]] int refused(const Refusal &refusal) const { return ended(kRefused, "unchanged", refusal.text()); }
    // Prints the state of a process that is neither as before nor as wanted. Returns the exit status.
    [[nodiscard]] int half_done(const FoundState &state, const std::string &why) const;
    // Adds a JSON answer. False without --json: then the caller prints text.
    [[nodiscard]] bool answer(const json::Members &members) const;
    // Returns the bytes that the process holds of all GPUs, by NVML. 0 without NVML.
    [[nodiscard]] policy::Bytes held() const;
    // True if the pid is still that of the process that was inspected. Root may move any process, so it must not move
    // another one that has got the pid since.
    [[nodiscard]] bool is_the_same() const;
    // Returns the bytes that the process held when it was suspended, by the record. 0 without a record.
    [[nodiscard]] policy::Bytes recorded() const;

    static constexpr const char *kAnother = "another process has its pid now";

    const int pid_;
    const Target target_;
    const std::string cannot_;  // "cannot suspend 4711 (python3): "

  private:
    std::vector<std::string> *const answers_;
    const char *done_;
};

// Calls `move` for each process of the selection in turn. With --json prints the answers as one list. If the selection
// is a description, skips the processes that are where they should be already (out of their GPUs if `is_out_after`).
// Returns the highest status: half done counts more than refused. Stops when the user interrupts.
using Move = std::function<int(int pid, std::vector<std::string> *answers)>;
int each(const char *command, bool is_out_after, const MoveOptions &options, const Move &move);

// Runs in the helper that libcurb.so starts for a nap. Waits until the process is back, has ended, or wants to come
// back: it writes "back" to standard input or closes it. Then resumes it as soon as there is room. "leave" on standard
// input ends the helper: the process stays suspended until curb resume. `process`: as it was before it was moved.
int bring_back_when_asked(const control::suspended::Process &process);

}  // namespace curb::cli
