// A process as /proc shows it: the facts that decide whether it can be suspended.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "control/messages.hpp"
#include "control/proc.hpp"
#include "control/suspended.hpp"
#include "policy/values/result.hpp"
#include "policy/values/size.hpp"
#include "terminal/json.hpp"

namespace curb::cli {

// Returns "4711 (python3)", or "4711" without a name.
std::string label_of(int pid, const std::string &name);
// Returns the kernel's name of the process that has this pid now, "python3". Empty if there is none.
std::string name_of(int pid);

struct Target {
    control::suspended::Process process;  // start 0: there is none
    int thread_of = 0;                    // the pid is that of a thread of this process; 0: it is not
    int parent = 0;
    std::string name;  // the kernel's, 15 bytes: "python3"
    std::string executable;
    std::optional<std::map<std::string, std::string>> environment;  // at its start; nullopt: it cannot be read
    bool under_curb = false;                                        // libcurb.so is mapped
    bool has_nccl = false;                                          // libnccl is

    [[nodiscard]] std::string text() const { return label_of(process.pid, name); }
};
// `libraries`: reads its maps for those that it has mapped, too.
Target inspect(int pid, bool libraries = true);
// Returns the variables with which a process was started. nullopt if they cannot be read.
std::optional<std::map<std::string, std::string>> environment_of(int pid);
// Returns the identity of a process, from the text of its /proc/PID/status if that is known.
control::suspended::Process identity_of(int pid, const std::string &status);
control::suspended::Process identity_of(int pid);
// True if curb suspend or a nap has moved the process out of its GPUs.
bool is_suspended(const control::suspended::Process &process);
// Returns the parent of a process. 0 if there is none.
int parent_of(int pid);
// Returns those of `processes` that `pid` or its descendants started, such as the programs of a shell or launcher.
std::vector<int> started_by(int pid, const std::vector<int> &processes);

// The number of ranks of a distributed program, from its environment.
struct Ranks {
    std::string variable;  // "WORLD_SIZE"
    std::string count;     // "8"
};
std::optional<Ranks> ranks_of(const std::map<std::string, std::string> &environment);

// Returns the report in the answer, or the process's error message.
template <class Report>
policy::Result<Report, std::string> report_in(int pid, control::Reply reply) {
    if (auto *report = std::get_if<Report>(&reply)) return std::move(*report);
    if (auto *failure = std::get_if<control::Failure>(&reply)) return std::move(failure->message);
    return control::process_text(pid) + " answers something else than was asked";
}
// Returns {"pid":4711,"error":"…"}.
inline std::string error_json(int pid, const std::string &error) {
    return json::object({{"pid", std::to_string(pid)}, {"error", json::text(error)}});
}

}  // namespace curb::cli
