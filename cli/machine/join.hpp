// Joins facts about the users of GPUs, each from its own source, into one View. Pure.
#pragma once

#include <string>
#include <vector>

#include "control/client.hpp"
#include "nvml.hpp"
#include "policy/result.hpp"
#include "view.hpp"

namespace curb::cli {

// Facts from /proc about a process.
struct ProcessFacts {
    int pid = 0;
    bool lives = false;  // false: there is none (any more) in this pid namespace, or it is a zombie
    std::string user, name, command;
    bool stopped = false;
    bool suspended = false;  // by the record that curb suspend keeps
    bool preloaded = false;  // libcurb.so is mapped
};

struct ViewFacts {
    policy::Result<std::vector<GpuState>, std::string> gpus;
    std::vector<control::Answer> answers;
    // The processes that `gpus` or `answers` name, by pid. A process that NVML lists and that is not here is in another
    // pid namespace.
    std::vector<ProcessFacts> processes;
};
View join(const ViewFacts &facts);

}  // namespace curb::cli
