// What a policy file says, as plain values. config/ makes one from JSON; shim/ asks it about each device.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "policy/size.hpp"

namespace curb::policy {

// A key of the file's "gpu" object: "*" (every device) or "cuda:N" (this process's ordinal N).
struct GpuKey {
    std::optional<int> ordinal;  // none: every device
    friend bool operator==(const GpuKey &, const GpuKey &) = default;
};

struct GpuPolicy {
    std::optional<Size> cap;  // ceiling of held memory, context included; none: no ceiling
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

// The cap in force for the device with this ordinal: the rule of the more specific key wins ("cuda:0" over "*"), then
// narrowed_to is laid over it. None: no cap. Pure.
std::optional<Bytes> cap_for(const Policy &policy, int ordinal, Bytes device_total);

}  // namespace curb::policy
