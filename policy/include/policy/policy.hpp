// What a policy file says, as plain values. config/ makes one from JSON; shim/ asks it about each device.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "policy/gpu_key.hpp"
#include "policy/size.hpp"

namespace curb::policy {

// The size of a device that programs are told.
enum class Report : std::uint8_t { cap, device };

// What one rule says of a device. A member that it leaves out is as a less specific rule has it.
struct GpuPolicy {
    std::optional<Size> cap;  // ceiling of held memory, context included; by none: no ceiling
    std::optional<Report> report;
    friend bool operator==(const GpuPolicy &, const GpuPolicy &) = default;
};

struct GpuRule {
    GpuKey key;
    GpuPolicy policy;
    friend bool operator==(const GpuRule &, const GpuRule &) = default;
};

// The release steps, in the order of release_steps.def.
enum class Step : std::uint8_t {
#define CURB_STEP(name, text) name,
#include "policy/release_steps.def"
#undef CURB_STEP
};
const char *step_name(Step step) noexcept;

struct ReleasePolicy {
    int signal = 10;  // a signal number of this system (SIGUSR1); 0: none
    std::vector<Step> steps = {
#define CURB_STEP(name, text) Step::name,
#include "policy/release_steps.def"
#undef CURB_STEP
    };
    friend bool operator==(const ReleasePolicy &, const ReleasePolicy &) = default;
};

enum class LogLevel : std::uint8_t { trace, debug, info, warning, error, off };
const char *log_level_name(LogLevel level) noexcept;

struct LogPolicy {
    LogLevel level = LogLevel::warning;
    std::string file;  // empty: stderr; "%p" stands for the pid
    friend bool operator==(const LogPolicy &, const LogPolicy &) = default;
};

struct Policy {
    std::vector<GpuRule> gpu;
    ReleasePolicy release;
    LogPolicy log;
    std::optional<Size>
        narrowed_to;  // a cap laid over every device from outside the file (CURB_CAP): it can only narrow
    friend bool operator==(const Policy &, const Policy &) = default;
};

// The functions below are pure; they may throw std::bad_alloc.

// What holds for a device: the rules that name it, laid over each other field by field, the most specific key on top
// ("cuda:0" over "*", a longer beginning of a UUID over a shorter one; of equals the later rule). `report` always has a
// value.
GpuPolicy gpu_policy_for(const Policy &policy, const GpuIdentity &gpu);

// The cap in force for a device of this size: that of gpu_policy_for, then narrowed_to. None: no cap.
std::optional<Bytes> cap_for(const Policy &policy, const GpuIdentity &gpu, Bytes device_total);

// A policy held against all devices of a process, before it is asked about each.
struct Matched {
    Policy policy;                       // without the rules that cannot be applied
    std::vector<std::string> ambiguous;  // of each such rule, why: its beginning of a UUID is that of several GPUs
    std::vector<std::string> unmatched;  // of each rule for none of these devices, which they are. Not an error: one
                                         // file may serve processes that see different devices
};
Matched match(const Policy &policy, std::span<const GpuIdentity> gpus);

// Whether a key asks for nvidia-smi's index, which only NVML knows.
bool needs_nvml_index(const Policy &policy);

}  // namespace curb::policy
