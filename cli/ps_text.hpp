// A View as people and programs read it. Pure: the clock and the terminal come in from outside.
#pragma once

#include <string>
#include <vector>

#include "terminal.hpp"
#include "view.hpp"

namespace curb::cli {

// GPU by GPU a head line and its processes, and what is to be said about them underneath. `now`: times of the same day
// go without a date.
std::string ps_table(const View &view, const Screen &screen, control::UnixMs now);
// What is out of the ordinary, one sentence or two each.
std::vector<std::string> ps_notes(const View &view, control::UnixMs now);

// One process with all that is known of it.
std::string ps_detail(const View &view, std::size_t process, const Screen &screen, control::UnixMs now);

// RFC 4180, a row for each process and GPU. `time`: the first column, as "2026-11-21T12:31:04Z".
std::string ps_csv_head();
std::string ps_csv(const View &view, control::UnixMs now);

// A process that was asked for and cannot be shown.
struct PsError {
    int pid = 0;
    std::string message;
};
// One line of JSON: cli/schemas/ps.schema.json.
std::string ps_json(const View &view, const std::vector<PsError> &errors, control::UnixMs now);

// "GPU 0", "GPU 0 MIG 1", "GPU-8f3a1b2c"
std::string gpu_label(const View &view, const ViewGpu &gpu);
// "4711 (python3)"
std::string process_label(const ViewProcess &process);
// "NVML says that it holds 3 GiB of GPU 0"; empty: NVML does not list it.
std::string nvml_says(const View &view, std::size_t process);
// "12:31:04", or "2026-11-20 12:31:04" where that is another day, by the local clock.
std::string clock_text(control::UnixMs at, control::UnixMs now);

}  // namespace curb::cli
