// What policies say, as plain values. config/ makes them from JSON; shim/ asks about each device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "policy/duration.hpp"
#include "policy/gpu_key.hpp"
#include "policy/growth.hpp"
#include "policy/size.hpp"

namespace curb::policy {

// The size of a device that programs are told.
enum class Report : std::uint8_t { cap, device };

// A member that a file leaves out has no value; what that means says the table of fields (fields.def).
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
    GrowthPolicy growth;
    CachePolicy cache;
    std::optional<Report> report{};
    friend bool operator==(const GpuPolicy &, const GpuPolicy &) = default;
};

// What holds for the devices that a key names.
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
    friend bool operator==(const TracePolicy &, const TracePolicy &) = default;
};

// What one place says: a file without its rules, or what a rule lays over it.
struct Layer {
    std::vector<GpuRule> gpu;
    ReleasePolicy release;
    FrameworksPolicy frameworks;
    LogPolicy log;
    TracePolicy trace;
    friend bool operator==(const Layer &, const Layer &) = default;
};

// The policy in force in one process: every member with a fallback has a value, but for those of `gpu`, which become
// terms_for() a device.
struct Policy : Layer {
    Policy();                       // no caps
    std::vector<GpuRule> ceiling;   // what the machine's ceiling says of devices
    std::vector<Size> narrowed_to;  // caps over every device from outside the files (CURB_CAP): the lowest holds
    friend bool operator==(const Policy &, const Policy &) = default;
};

// The functions below are pure and thread-safe; they may throw std::bad_alloc.

// Lays what `over` says over `under`: field by field, of devices by key, of environments by name. A step replaces a
// factor and the other way round.
void lay_over(Layer &under, const Layer &over);

// The policy in force: `own` within `ceiling`, field by field as the table says which holds. What `own` leaves out is
// as the ceiling has it.
Policy in_force(const Layer &own, const Layer &ceiling, std::vector<Size> narrowed_to);

// The rules that name a device, the most specific key last ("*" before "cuda:0", a shorter beginning of a UUID before a
// longer one; equals as they stand). They point into `rules`.
std::vector<const GpuRule *> rules_naming(std::span<const GpuRule> rules, const GpuIdentity &gpu);

// What these rules say of a device: those that name it laid over each other, in that order.
GpuPolicy gpu_policy_for(std::span<const GpuRule> rules, const GpuIdentity &gpu);

// Freed blocks that are kept for reuse, of one device.
struct Cache {
    Bytes max = 0;     // 0: none are kept
    Duration idle{0};  // how long one may lie unused
    friend bool operator==(const Cache &, const Cache &) = default;
};

// What holds for one device, in its bytes.
struct GpuTerms {
    std::optional<Bytes> cap;  // none: no cap
    Growth growth;
    Cache cache{};
    Report report = Report::cap;
    bool ceiling = false;  // the cap is the machine's ceiling's: the process's own would be higher, or there is none
    friend bool operator==(const GpuTerms &, const GpuTerms &) = default;
};
// `live_cap`: in the place of the cap that the policy's files and CURB_CAP say, within the ceiling all the same.
GpuTerms terms_for(const Policy &policy, const GpuIdentity &gpu, Bytes device_total,
                   std::optional<Size> live_cap = std::nullopt);

// Rules held against all devices of a process, before they are asked about each.
struct Matched {
    std::vector<GpuRule> rules;          // those that can be applied
    std::vector<std::string> ambiguous;  // of each other, why: its beginning of a UUID is that of several GPUs
    std::vector<std::string> unmatched;  // of each rule for none of these devices, which they are. Not an error: one
                                         // file may serve processes that see different devices
};
Matched match(std::span<const GpuRule> rules, std::span<const GpuIdentity> gpus);

// Whether a key asks for nvidia-smi's index, which only NVML knows.
bool needs_nvml_index(const Policy &policy);

// Something that fields say against each other.
struct Conflict {
    GpuKey key;
    std::string field;    // "growth/start"; which of them to look at
    std::string message;  // what is wrong and what would be right
};
// Of these rules, each laid over those for "*".
std::vector<Conflict> conflicts(std::span<const GpuRule> rules);

}  // namespace curb::policy
