// Formats a View for people and for programs. Pure: clock and terminal are arguments.
#pragma once

#include <string>
#include <vector>

#include "machine/view.hpp"
#include "terminal/terminal.hpp"

namespace curb::cli {

// Returns the table: for each GPU a heading and its processes, and the notes below.
std::string ps_table(const View &view, const Screen &screen, control::UnixMs now);
// Returns the notes: one for each thing that is out of the ordinary.
std::vector<std::string> ps_notes(const View &view, control::UnixMs now);

// Returns all that is known of one process.
std::string ps_detail(const View &view, std::size_t process, const Screen &screen, control::UnixMs now);

// A named process that cannot be shown.
struct PsError {
    int pid = 0;
    std::string message;
};
// Returns one line of JSON, such as tests/command/answers/ps.json.
std::string ps_json(const View &view, const std::vector<PsError> &errors, control::UnixMs now);

// Returns "GPU 0", "GPU 0 MIG 1", or "GPU-8f3a1b2c" if the index is not known.
std::string gpu_label(const View &view, const ViewGpu &gpu);
// Returns "NVML says that it holds 3 GiB of GPU 0". Empty if NVML does not list the process.
std::string nvml_says(const View &view, std::size_t process);
// Returns "800 MiB, 3 s so far (thread 4720): it hit the allowance; the next growth step is due in 5 s; it fails in 27
// s unless there is room by then". `pid`: of the process; its main thread, which has the same number, is not named.
std::string wait_text(const control::Waiting &one, int pid, control::UnixMs now);
// Returns "until its next CUDA call", or, if a process that naps waits for room, "and a call has waited 5 s for room to
// come back; 4712 (python3) holds 70 GiB of GPU 0": the largest on each of its GPUs.
std::string nap_end_text(const View &view, std::size_t process, control::UnixMs now);
// Returns what helps a process whose requests hit this limit.
std::string remedy_for(policy::Limit why, int pid);
// Returns the process's last refusal on this GPU. Null if there is none, or if it is too old to be remembered.
const control::Refusal *last_refusal(const control::Status &status, const control::GpuStatus &gpu);
// Returns "refused 3 requests, last 12:30:04: 2 GiB hit the cap". `where`: " on GPU 0", behind the number.
std::string refusal_text(const control::GpuStatus &gpu, const control::Refusal &last, control::UnixMs now,
                         const std::string &where = {});
// Returns what helps against it: "raise it: curb cap 4711 10GiB".
std::string refusal_help(int pid, const control::GpuStatus &gpu, const control::Refusal &last);
// Returns the colour of a state.
Ink ink_of(State state);
// False for short waits, which are normal under a policy with growth.wait.
bool has_waited_long(const control::Waiting &one, control::UnixMs now);
// Shortens a command that is too long: first by the program's folder, then at the end.
std::string shortened_command(const std::string &text, std::size_t columns, bool unicode);
// Returns "3 s", "5 min", "2 h 3 min", "3 days".
std::string span_text(control::UnixMs from, control::UnixMs to);
// Returns the local time: "12:31:04", or "2026-11-20 12:31:04" if that is another day than `now`.
std::string clock_text(control::UnixMs at, control::UnixMs now);

}  // namespace curb::cli
