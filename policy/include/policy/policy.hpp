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

#include "policy/duration.hpp"
#include "policy/gpu_key.hpp"
#include "policy/growth.hpp"
#include "policy/size.hpp"

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
#define CURB_STEP(name, text) name,
#include "policy/release_steps.def"
};
inline constexpr std::size_t kSteps = 0
#define CURB_STEP(name, text) +1
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
    std::optional<Size> host_memory{};
    friend bool operator==(const SuspendPolicy &, const SuspendPolicy &) = default;
};

// The processes that a job's cap is for, the widest job last: where a ceiling and the user differ, the wider holds.
enum class JobOf : std::uint8_t { tree, cgroup, slurm, user };

struct JobPolicy {
    std::optional<Size> cap{};  // on every device
    std::optional<JobOf> of{};
    friend bool operator==(const JobPolicy &, const JobPolicy &) = default;
};

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
    ReleasePolicy release;
    SuspendPolicy suspend;
    FrameworksPolicy frameworks;
    LogPolicy log;
    TracePolicy trace;
    friend bool operator==(const Layer &, const Layer &) = default;
};

// A cap from outside the files, over every device unless `key` says which.
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

// The caps from outside the files. Of each list the lowest that names a device holds.
struct Narrowing {
    std::vector<CapFor> cap;  // CURB_CAP
    std::vector<CapFor> job;  // CURB_JOB_CAP
    HandedIn handed_in{};
};

// The policy in force in one process. Every field with a default has a value, except in `gpu`: terms_for() fills those.
struct Policy : Layer {
    Policy();                         // no caps
    std::vector<GpuRule> ceiling;     // what the machine's ceiling says of devices
    std::vector<CapFor> narrowed_to;  // CURB_CAP: the lowest that names a device holds
    std::vector<CapFor> job_caps;     // job.cap and CURB_JOB_CAP: the lowest that names a device holds
    std::optional<Size> job_ceiling;  // job.cap of the machine's ceiling
    HandedIn handed_in;               // for devices that nothing else of the user's caps
    friend bool operator==(const Policy &, const Policy &) = default;
};

// The functions below are pure and thread-safe; they may throw std::bad_alloc.

// Lays what `over` says over `under`: field by field, of devices by key, of environments by name. A step replaces a
// factor and the other way round.
void lay_over(Layer &under, const Layer &over);

// Returns the policy in force: `own` limited by `ceiling`, field by field as fields.def says. A field that `own` does
// not set has the ceiling's value.
Policy in_force(const Layer &own, const Layer &ceiling, Narrowing narrowed_to);

// Returns pointers to the rules that name a device, the most specific key last ("*" before "cuda:0", a shorter prefix
// of a UUID before a longer one; equal keys in the order of `rules`).
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
    Report report = Report::cap;
    bool ceiling = false;      // the cap comes from the machine's ceiling, because the process's own is higher or unset
    bool job_ceiling = false;  // the same of the job's cap
    std::string handed_in{};   // the variable of another system that the cap comes from; empty: it does not
    friend bool operator==(const GpuTerms &, const GpuTerms &) = default;
};
// `live_cap` replaces the cap of the policy file and CURB_CAP, `live_job_cap` that of the job; the ceiling still limits
// them.
GpuTerms terms_for(const Policy &policy, const GpuIdentity &gpu, Bytes device_total,
                   std::optional<Size> live_cap = std::nullopt, std::optional<Bytes> live_job_cap = std::nullopt);

// The rules of a policy, checked against all devices of a process.
struct Matched {
    std::vector<GpuRule> rules;          // that can be applied
    std::vector<std::string> ambiguous;  // why each other one cannot: its prefix of a UUID names several GPUs
    std::vector<std::string> unmatched;  // for each rule that names no device, a list of the devices. Not an error:
                                         // one file may serve processes that see different devices
};
Matched match(std::span<const GpuRule> rules, std::span<const GpuIdentity> gpus);

// True if the policy caps the job on some device.
bool has_job_cap(const Policy &policy) noexcept;

// True if a key uses nvidia-smi's index, which only NVML knows.
bool needs_nvml_index(const Policy &policy);

// Two fields that contradict each other.
struct Conflict {
    GpuKey key;
    std::string field;    // "growth/start"; the one to point at
    std::string message;  // the fault and a correct value
};
// Returns the conflicts of these rules, each merged with those for "*".
std::vector<Conflict> conflicts(std::span<const GpuRule> rules);

}  // namespace curb::policy
