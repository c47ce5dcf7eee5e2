// What keeps curb from suspending or resuming a process: decided here from what was found out, before anything is
// touched. Pure: the driver, NVML, /proc and the books are others' to ask.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cuda_abi.h"
#include "nvml.hpp"
#include "policy/size.hpp"
#include "target.hpp"

namespace curb::cli {

// One sentence each, without a full stop.
struct Refusal {
    std::string what, why, remedy;
    [[nodiscard]] std::string text() const { return what + ": " + why + "; " + remedy; }
};

// The driver that curb itself could load.
struct DriverFacts {
    std::string fault;  // why there is none
    int cuda = 0;       // as cuDriverGetVersion says it
    std::string version;
    bool has_checkpoint = false;
    std::optional<CUprocessState> state;  // of the process; nothing: the driver does not know it
    std::string state_error;
};

struct Books {
    std::optional<policy::Bytes> managed;  // managed memory; nothing: not known
    std::string unknown;                   // why: "it is not under curb"
};

struct SuspendFacts {
    unsigned user = 0;  // who is asking
    Target target;
    // What is not known yet is not judged.
    std::optional<DriverFacts> driver;
    std::optional<policy::Result<std::vector<GpuState>, std::string>> gpus;
    std::optional<Books> books;
    std::optional<HostRoom> host;
    int companion = 0;   // another process that holds GPU memory, started by the same program; 0: none
    bool force = false;  // goes on where it is only guessed that it might go wrong
};
std::optional<Refusal> why_not_suspend(const SuspendFacts &facts);

// Room that one GPU must have.
struct Need {
    std::string uuid;
    policy::Bytes bytes = 0;
};
struct ResumeFacts {
    unsigned user = 0;
    Target target;
    std::optional<DriverFacts> driver;
    std::optional<policy::Result<std::vector<GpuState>, std::string>> gpus;
    std::optional<std::vector<Need>> needs;  // empty: it is not known what has to come back
};
// A process that is locked and no more passes: it is only to be unlocked.
std::optional<Refusal> why_not_resume(const ResumeFacts &facts);

// Whether all that stands in the way is that the devices have too little room now.
bool only_room_is_lacking(const ResumeFacts &facts);

// What a process will take of the device again, and some more that must stay free: the driver wedges a process for good
// that comes back to too little. `held`: before it was suspended, `free`: of the device at that moment, `left`: what it
// still holds.
policy::Bytes room_for(policy::Bytes held, policy::Bytes free, policy::Bytes left);

// "running", "locked", "checkpointed", "failed"
const char *state_name(CUprocessState state);
// The GPUs on which the process holds memory, or might.
std::vector<const GpuState *> gpus_of(const std::vector<GpuState> &gpus, int pid);
policy::Bytes held_by(const std::vector<GpuState> &gpus, int pid);

}  // namespace curb::cli
