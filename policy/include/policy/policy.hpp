// Policies as plain values. config/ reads them from JSON; shim/ applies them to each device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "policy/decisions/growth.hpp"
#include "policy/values/duration.hpp"
#include "policy/values/gpu_key.hpp"
#include "policy/values/size.hpp"

namespace curb::policy {

// The size of a device that programs see.
enum class Report : std::uint8_t { cap, device };

// A field that the file does not set is nullopt; fields.def has its default.
struct GrowthPolicy {
    std::optional<Size> start{};
    std::optional<Size> step{};
    std::optional<double> factor{};
    std::optional<Duration> every{};
    std::optional<Size> keep_free{};
    std::optional<Duration> wait{};
    friend bool operator==(const GrowthPolicy &, const GrowthPolicy &) = default;
};

struct CachePolicy {
    std::optional<Size> max{};
    std::optional<Duration> idle{};
    friend bool operator==(const CachePolicy &, const CachePolicy &) = default;
};

struct GpuPolicy {
    std::optional<Size> cap{};
    std::optional<Size> job_cap{};
    GrowthPolicy growth;
    CachePolicy cache;
    std::optional<Report> report{};
    friend bool operator==(const GpuPolicy &, const GpuPolicy &) = default;
};

// The policy of the devices that a key names.
struct GpuRule {
    GpuKey key;
    GpuPolicy policy;
    friend bool operator==(const GpuRule &, const GpuRule &) = default;
};

// The release steps, in the order of release_steps.def.
enum class Step : std::uint8_t {
#define CURB_STEP(name, ...) name,
#include "policy/release_steps.def"
};
inline constexpr std::size_t kSteps = 0
#define CURB_STEP(name, ...) +1
#include "policy/release_steps.def"
    ;
const char *step_name(Step step) noexcept;
std::vector<Step> all_steps();

inline constexpr int kReleaseSignal = 10;  // SIGUSR1 on the systems that curb runs on

struct ReleasePolicy {
    std::optional<int> signal{};  // a signal number of this system; 0: none
    std::optional<std::vector<Step>> steps{};
    std::optional<Duration> idle{};
    std::optional<bool> before_growth{};
    std::optional<bool> collect{};
    friend bool operator==(const ReleasePolicy &, const ReleasePolicy &) = default;
};

struct SuspendPolicy {
    std::optional<Duration> idle{};
    std::optional<Duration> when_others_wait{};
    std::optional<Duration> turn{};
    std::optional<bool> light{};
    std::optional<Duration> deep{};  // kNever: not at all
    std::optional<Size> host_memory{};
    friend bool operator==(const SuspendPolicy &, const SuspendPolicy &) = default;
};

// The processes of a job, the widest kind of job last. If the ceiling and the user differ, the wider one is in force.
enum class JobOf : std::uint8_t { tree, cgroup, slurm, user };

struct JobPolicy {
    std::optional<Size> cap{};  // on every device
    std::optional<JobOf> of{};
    friend bool operator==(const JobPolicy &, const JobPolicy &) = default;
};

// How much other users see of the process. If the ceiling and the user differ, they see less.
enum class Share : std::uint8_t { all, order, none };

using Environment = std::map<std::string, std::string>;

struct FrameworksPolicy {
    std::optional<bool> steer{};
    std::optional<Environment> env{};
    friend bool operator==(const FrameworksPolicy &, const FrameworksPolicy &) = default;
};

enum class LogLevel : std::uint8_t { trace, debug, info, warning, error, off };
const char *log_level_name(LogLevel level) noexcept;

struct LogPolicy {
    std::optional<LogLevel> level{};
    std::optional<std::string> file{};  // empty: stderr; "%p" stands for the pid
    friend bool operator==(const LogPolicy &, const LogPolicy &) = default;
};

struct TracePolicy {
    std::optional<std::string> file{};
    std::optional<Size> stacks{};  // of allocations of at least this size
    friend bool operator==(const TracePolicy &, const TracePolicy &) = default;
};

// The settings of one source: a file without its rules, or one rule.
struct Layer {
    std::vector<GpuRule> gpu;
    JobPolicy job;
    std::optional<bool> environment{};  // whether HandedIn is used
    std::optional<Share> share{};
    ReleasePolicy release;
    SuspendPolicy suspend;
    FrameworksPolicy frameworks;
    LogPolicy log;
    TracePolicy trace;
    friend bool operator==(const Layer &, const Layer &) = default;
};

// A cap from outside the files, for the devices that `key` names.
struct CapFor {
    CapFor(Size cap, GpuKey of = {}) : size(cap), key(std::move(of)) {}
    Size size;
    GpuKey key;
    friend bool operator==(const CapFor &, const CapFor &) = default;
};

// A cap that another system hands to the process.
struct HandedInCap {
    CapFor cap;
    std::string variable;
    friend bool operator==(const HandedInCap &, const HandedInCap &) = default;
};
struct HandedIn {
    std::vector<HandedInCap> caps;
    std::optional<Size> request{};  // the allowance to begin with
    friend bool operator==(const HandedIn &, const HandedIn &) = default;
};

// The caps from outside the files. In each list the lowest cap that names a device is in force.
struct Narrowing {
    std::vector<CapFor> cap;  // CURB_CAP
    std::vector<CapFor> job;  // CURB_JOB_CAP
    HandedIn handed_in{};
};

// The policy in force in one process. Every field with a default has a value, except in `gpu`: terms_for() fills those.
struct Policy : Layer {
    Policy();                                 // no caps
    std::vector<GpuRule> ceiling;             // the device rules of the machine's ceiling
    std::vector<CapFor> narrowed_to;          // CURB_CAP; as in Narrowing
    std::vector<CapFor> job_caps;             // job.cap and CURB_JOB_CAP; as in Narrowing
    std::optional<Size> job_ceiling;          // job.cap of the machine's ceiling
    std::optional<Size> host_memory_ceiling;  // suspend.host_memory of the machine's ceiling
    HandedIn handed_in;                       // in force on devices that the user does not cap in another way
    friend bool operator==(const Policy &, const Policy &) = default;
};

// The functions below are pure and thread-safe; they may throw std::bad_alloc.

// Overrides each field of `under` that `over` sets. Merges devices by key and environments by name. A growth step
// replaces a factor, and a factor a step.
void lay_over(Layer &under, const Layer &over);

// Returns the policy in force: `own` limited by `ceiling`, field by field as fields.def says. A field that `own` does
// not set has the ceiling's value.
Policy in_force(const Layer &own, const Layer &ceiling, Narrowing narrowed_to);

// Returns pointers to the rules that name a device, the most specific key last: "*" before "cuda:0", a shorter prefix
// of a UUID before a longer one, equal keys in the order of `rules`.
std::vector<const GpuRule *> rules_naming(std::span<const GpuRule> rules, const GpuIdentity &gpu);

// Merges the rules that name a device, in that order.
GpuPolicy gpu_policy_for(std::span<const GpuRule> rules, const GpuIdentity &gpu);

// The limits of kept blocks on one device.
struct Cache {
    Bytes max = 0;     // 0: no cache
    Duration idle{0};  // how long a kept block may stay unused
    friend bool operator==(const Cache &, const Cache &) = default;
};

// The limits in force on one device, in bytes.
struct GpuTerms {
    std::optional<Bytes> cap;        // nullopt: no cap
    std::optional<Bytes> job_cap{};  // for all processes of the job together; nullopt: none
    Growth growth;
    Cache cache{};
    GpuPolicy fields{};        // all fields, with sizes in bytes and defaults
    bool ceiling = false;      // the cap comes from the machine's ceiling, because the process's own is higher or unset
    bool job_ceiling = false;  // the job's cap comes from the machine's ceiling, for the same reasons
    std::string handed_in{};   // the cap comes from this variable of another system; empty: it does not
    bool narrowed = false;     // the cap comes from CURB_CAP
    friend bool operator==(const GpuTerms &, const GpuTerms &) = default;
};
// Returns the limits of a device. `live_cap` replaces the cap of the policy file and CURB_CAP, `live_job_cap` replaces
// job.cap and CURB_JOB_CAP; the ceiling still limits both.
GpuTerms terms_for(const Policy &policy, const GpuIdentity &gpu, Bytes device_total,
                   std::optional<Size> live_cap = std::nullopt, std::optional<Bytes> live_job_cap = std::nullopt);

// The rules of a policy, checked against all devices of a process.
struct Matched {
    std::vector<GpuRule> rules;          // that can be applied
    std::vector<std::string> ambiguous;  // a message for each rule whose prefix of a UUID names several GPUs
    std::vector<std::string> unmatched;  // a message for each rule that names no device. Not an error: one file may
                                         // serve processes that see different devices
};
Matched match(std::span<const GpuRule> rules, std::span<const GpuIdentity> gpus);

// True if the policy caps the job on some device.
bool has_job_cap(const Policy &policy) noexcept;

// True if a key uses nvidia-smi's index, which only NVML knows.
bool needs_nvml_index(const Policy &policy);

// Two fields that contradict each other.
struct Conflict {
    GpuKey key;
    std::string field;    // the field to point at: "growth/start"
    std::string message;  // the fault and a correct value
};
// Returns the conflicts within each rule, merged with the rules for "*".
std::vector<Conflict> conflicts(std::span<const GpuRule> rules);

}  // namespace curb::policy
