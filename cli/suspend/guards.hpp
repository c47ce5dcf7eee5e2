// Decides from facts whether a process can be suspended or resumed, before curb changes anything. Pure: checkpoint.hpp
// collects the facts.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "abi/cuda_abi.h"
#include "control/host_room.hpp"
#include "machine/driver.hpp"
#include "machine/target.hpp"
#include "policy/values/size.hpp"

namespace curb::cli {

// Parts of the message, without a full stop.
struct Refusal {
    std::string what, why, remedy;
    [[nodiscard]] std::string reason() const { return why + "; " + remedy; }
    [[nodiscard]] std::string text() const { return what + ": " + reason(); }
};

// The driver that curb could load here.
struct DriverFacts {
    std::string fault;  // why it cannot be loaded
    int cuda = 0;       // of cuDriverGetVersion
    std::string version;
    bool has_checkpoint = false;
    std::optional<CUprocessState> state;  // of the process; nullopt: the driver does not know it
    std::string state_error;
};

struct Books {
    std::optional<policy::Bytes> managed;  // managed memory; nullopt: not known
    std::string unknown;                   // why: "it is not under curb"
};

// The checks of facts that are not known yet are skipped.
struct Facts {
    unsigned user = 0;  // effective user of this command
    Target target;
    std::optional<DriverFacts> driver;
    std::optional<NvmlGpus> gpus;
};
struct SuspendFacts : Facts {
    std::optional<Books> books;
    std::optional<control::HostRoom> host;
    int companion = 0;                    // another process that holds GPU memory and works together with it; 0: none
    bool force = false;                   // skips the checks that only suspect a problem
    bool is_nap = false;                  // leaves a tenth of the host memory free
    std::vector<policy::Size> most_host;  // takes no more host memory than the least of these
};
// Returns the reason to refuse. nullopt if there is none.
std::optional<Refusal> why_not_suspend(const SuspendFacts &facts);

// The free memory that one GPU must have.
struct Need {
    std::string uuid;
    policy::Bytes bytes = 0;
};
struct ResumeFacts : Facts {
    std::optional<std::vector<Need>> needs;  // an empty list: there is no record of what the process held
};
// Returns the reason to refuse. nullopt if there is none, or if the process is locked and only has to be unlocked.
std::optional<Refusal> why_not_resume(const ResumeFacts &facts);

// True if the only reason to refuse is too little free memory on the devices.
bool only_room_is_lacking(const ResumeFacts &facts);

// Returns the free memory that a process needs to come back, with a margin: with too little, the driver gives the
// process up for good. `held`: what the process held before its suspend; `free`: what the device had free then; `left`:
// what the process holds now.
policy::Bytes room_for(policy::Bytes held, policy::Bytes free, policy::Bytes left);

// Returns "running", "locked", "checkpointed" or "failed".
const char *state_name(CUprocessState state);
// Returns the GPUs on which NVML lists the process.
std::vector<const GpuState *> gpus_of(const std::vector<GpuState> &gpus, int pid);
policy::Bytes held_by(const std::vector<GpuState> &gpus, int pid);

}  // namespace curb::cli
