// Prints a View for people and for programs. Pure: the clock and the terminal come in from outside.
#pragma once

#include <string>
#include <vector>

#include "terminal.hpp"
#include "view.hpp"

namespace curb::cli {

// Returns the table: for each GPU a heading and its processes, and the notes below.
std::string ps_table(const View &view, const Screen &screen, control::UnixMs now);
// Returns the notes: one or two sentences for each thing that is out of the ordinary.
std::vector<std::string> ps_notes(const View &view, control::UnixMs now);

// Returns one process with all that is known of it.
std::string ps_detail(const View &view, std::size_t process, const Screen &screen, control::UnixMs now);

// A process that was asked for and cannot be shown.
struct PsError {
    int pid = 0;
    std::string message;
};
// One line of JSON: tests/command/answers/ps.json is an example.
std::string ps_json(const View &view, const std::vector<PsError> &errors, control::UnixMs now);

// "GPU 0", "GPU 0 MIG 1", "GPU-8f3a1b2c"
std::string gpu_label(const View &view, const ViewGpu &gpu);
// "NVML says that it holds 3 GiB of GPU 0"; empty: NVML does not list it.
std::string nvml_says(const View &view, std::size_t process);
// "800 MiB since 3 s (thread 4720): it met the allowance; the next growth step is due in 5 s; it fails in 27 s unless
// there is room by then". `pid`: of its process, whose first thread has no other number.
std::string wait_text(const control::Waiting &one, int pid, control::UnixMs now);
// False for short waits, which are normal under a policy with growth.wait.
bool has_waited_long(const control::Waiting &one, control::UnixMs now);
// "3 s", "5 min", "2 h 3 min"
std::string span_text(control::UnixMs from, control::UnixMs to);
// "12:31:04", or "2026-11-20 12:31:04" where that is another day, by the local clock.
std::string clock_text(control::UnixMs at, control::UnixMs now);

}  // namespace curb::cli
