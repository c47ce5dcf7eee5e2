// Decides from collected facts whether a process can be suspended or resumed, before anything is touched. Pure:
// checkpoint.hpp asks the driver, NVML, /proc and the process.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cuda_abi.h"
#include "driver.hpp"
#include "policy/size.hpp"
#include "target.hpp"

namespace curb::cli {

// One sentence each, without a full stop.
struct Refusal {
    std::string what, why, remedy;
    [[nodiscard]] std::string text() const { return what + ": " + why + "; " + remedy; }
};

// The driver as curb itself could load it.
struct DriverFacts {
    std::string fault;  // why there is none
    int cuda = 0;       // of cuDriverGetVersion
    std::string version;
    bool has_checkpoint = false;
    std::optional<CUprocessState> state;  // of the process; nothing: the driver does not know it
    std::string state_error;
};

struct Books {
    std::optional<policy::Bytes> managed;  // managed memory; nothing: not known
    std::string unknown;                   // why: "it is not under curb"
};

// Facts that are not known yet are not judged.
struct Facts {
    unsigned user = 0;  // who is asking
    Target target;
    std::optional<DriverFacts> driver;
    std::optional<NvmlGpus> gpus;
};
struct SuspendFacts : Facts {
    std::optional<Books> books;
    std::optional<HostRoom> host;
    int companion = 0;                      // another process that holds GPU memory and works together with it; 0: none
    bool force = false;                     // goes on where it is only guessed that it might go wrong
    std::optional<policy::Size> most_host;  // of a nap: it may take no more host memory, and leaves a tenth free
};
std::optional<Refusal> why_not_suspend(const SuspendFacts &facts);

// The free memory that one GPU must have.
struct Need {
    std::string uuid;
    policy::Bytes bytes = 0;
};
struct ResumeFacts : Facts {
    std::optional<std::vector<Need>> needs;  // empty: it is not known what has to come back
};
// Returns the reason to refuse. nullopt for a process that is only locked: it has only to be unlocked.
std::optional<Refusal> why_not_resume(const ResumeFacts &facts);

// True if only the free memory of the devices is missing.
bool only_room_is_lacking(const ResumeFacts &facts);

// Returns the free memory that a process needs to come back, with a margin: with too little the driver blocks the
// process for good. `held`: by the process before it was suspended, `free`: of the device at that moment, `left`: what
// the process still holds.
policy::Bytes room_for(policy::Bytes held, policy::Bytes free, policy::Bytes left);

// "running", "locked", "checkpointed", "failed"
const char *state_name(CUprocessState state);
// Returns the GPUs on which the process holds memory, or might.
std::vector<const GpuState *> gpus_of(const std::vector<GpuState> &gpus, int pid);
policy::Bytes held_by(const std::vector<GpuState> &gpus, int pid);

}  // namespace curb::cli
