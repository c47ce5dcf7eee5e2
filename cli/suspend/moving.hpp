// What `curb suspend` and `curb resume` share: both move one process after the other, and both may end half-way.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "checkpoint.hpp"
#include "json.hpp"
#include "selection.hpp"

namespace curb::cli {

// Exit statuses.
inline constexpr int kRefused = 1;
inline constexpr int kHalfDone = 2;
inline constexpr int kInterrupted = 130;

std::string seconds_text(Seconds seconds);                    // "0.012 s", "1.3 s"
std::string rate_text(policy::Bytes bytes, Seconds seconds);  // "2.23 GiB/s"

// One process that is moved, and the ways in which both commands end.
class Moving {
  protected:
    // `what`: "suspend", `done`: "suspended". `answers`: gets the answer for programs; null: it is for people.
    Moving(const char *what, const char *done, int pid, std::vector<std::string> *answers);

    // Says that it is not done, and why. Returns `status`.
    [[nodiscard]] int ended(int status, const std::string &state, const std::string &message) const;
    [[nodiscard]] int refused(const Refusal &refusal) const { return ended(kRefused, "unchanged", refusal.text()); }
    // Prints the state of a process that is neither as before nor as it should be.
    [[nodiscard]] int half_done(const Left &left, const std::string &why, const std::string &how,
                                const std::string &remedy) const;
    // Adds an answer for programs. False if the answer is for people.
    [[nodiscard]] bool answer(const json::Members &members) const;
    // Returns the bytes that the process holds of all GPUs, by NVML. 0 without NVML.
    [[nodiscard]] policy::Bytes held() const;

    const int pid_;
    const Target target_;
    const std::string cannot_;  // "cannot suspend 4711 (python3): "

  private:
    std::vector<std::string> *const answers_;
    const char *done_;
};

// Calls `move` with each process of the selection in turn. Prints the answers as one list, if `json`. Skips those that
// are described, not named, and that are already where they should be: out of their GPUs if `is_out_after`. Returns the
// worst status: a process that is half done counts more than one that is not. Ends at once when the user interrupts.
using Move = std::function<int(int pid, std::vector<std::string> *answers)>;
int each(const char *command, bool is_out_after, const Selection &selection, bool sim, bool json, const Move &move);

// For a nap, by the helper that libcurb.so has started: waits until the process wants to come back ("back" on standard
// input, or its end), is back, or has ended. Brings it back as soon as there is room. "leave": it stays suspended, and
// curb resume brings it back.
int bring_back_when_asked(int pid);

}  // namespace curb::cli
