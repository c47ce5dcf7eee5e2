// Sums up a recorded run: peaks, refusals, waits and releases. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "control/release_report.hpp"
#include "trace/recording.hpp"

namespace curb::cli {

// One release, with its steps in their order.
struct Release {
    std::uint64_t began_ns = 0, ended_ns = 0;
    std::string trigger;
    std::vector<std::pair<policy::Step, std::int64_t>> steps;  // with the bytes that each gave back
    std::int64_t bytes = 0;
};

// A time that the process spent out of its GPUs.
struct Absence {
    std::uint64_t began_ns = 0, ended_ns = 0;
    std::string how;                       // "nap", "light nap", "turn", "suspend"; empty: it began before the trace
    policy::Bytes bytes = 0;               // in host memory
    std::uint64_t out_ns = 0;              // the moves to host memory took so long; 0: not known
    std::optional<std::uint64_t> wake_ns;  // the time of its resume; nullopt: the trace ends before
    // Others had their turns: wake_ns is what a call waited, for them and for the way back.
    [[nodiscard]] bool is_turn() const noexcept { return how == "turn"; }
};

// A request that waited.
struct Waited {
    std::uint64_t began_ns = 0, ended_ns = 0;
    const Moment *moment = nullptr;  // the grant, or else the beginning of the wait
    enum class End : std::uint8_t { granted, refused, unknown } end = End::unknown;
};

// Allocations with one call stack.
struct Caller {
    const Moment *stack = nullptr;  // null: allocations without a recorded stack
    policy::Bytes bytes = 0;
    std::size_t count = 0;
};

struct GpuSummary : control::trace::Gpu {  // name, uuid and total are empty if not known
    std::size_t allocations = 0, frees = 0, growth_steps = 0;
    std::uint64_t refused_bytes = 0;

    policy::Bytes peak = 0;
    std::uint64_t peak_ns = 0;
    policy::ByKind at_peak{};
    std::optional<policy::Bytes> cap, allowance;  // in force at the peak
    policy::Bytes at_end = 0;
    policy::Bytes live_bytes = 0;  // of allocations that are not freed at the end
    std::size_t live = 0;          // their number

    // The smallest cap that serves the run, if it is asked for, and the option to paste: "--cap 5.92GiB".
    std::optional<policy::Bytes> smallest_cap;
    std::string paste;

    std::vector<const Moment *> refusals;
    std::vector<Waited> waits;
    std::vector<const Moment *> held_at_peak;  // the largest allocations at the peak, largest first
    std::vector<Caller> callers_at_peak;       // most bytes first, without a stack last; empty: no stacks are recorded
    std::vector<const Moment *> requests;      // the largest, granted or refused
};

// True if the process held memory of the GPU, or asked for some.
inline bool is_used(const GpuSummary &gpu) noexcept { return gpu.peak != 0 || !gpu.refusals.empty(); }

struct Summary {
    std::vector<GpuSummary> gpus;
    std::vector<Release> releases;
    std::vector<Absence> absences;
};

inline constexpr std::size_t kMostListed = 1000;  // entries of any list in JSON
inline constexpr std::size_t kLargest = 15;       // entries of held_at_peak and requests

// Sums up the recording. The result has pointers into it.
Summary summarise(const Recording &recording);

// Returns the local time at which the trace began, in ns, as if it were UTC. 0 if it has no time of day: then its times
// are those since its beginning.
std::int64_t local_begin_ns(const Recording &recording);
// Returns a time of day as fine as `step_ns`: "12:31", "12:31:04", "12:31:04.250". `days`: with the date, "03-01
// 12:31".
std::string time_of_day(std::int64_t local_ns, std::uint64_t step_ns, bool days);
// True if the recording lasts beyond midnight.
bool has_days(const Recording &recording);
// Returns "12:31:04", in milliseconds if the whole recording is shorter than 10 s.
std::string clock_text(const Recording &recording, std::uint64_t ns);
// Returns when the trace began: "2026-03-01 12:30:00 UTC". Empty if it has no time of day.
std::string date_text(const Recording &recording);
// Returns "a light nap", "a turn of others". Empty if it is not known.
std::string cause_text(const Absence &absence);
// Returns "the way back took 410 ms", of a turn "a call waited 31 s". Empty if the trace ends before.
std::string way_back_text(const Absence &absence);
// Returns "850 ms", "4.1 s", "2 min 5 s", "1 h 2 min".
std::string span_text(std::uint64_t ns);
std::string gpu_name(int gpu);                    // "cuda:0"
std::string pointer_text(std::uint64_t pointer);  // "0x7f8a40000000"

// Returns the calls of a stack, innermost first, with demangled names.
std::vector<std::string> calls_of(const std::string &stack);

// Returns the summary in sentences: "Peak 7.3 GiB of 8 GiB at 12:31:04 on cuda:0; nothing was refused."
std::vector<std::string> sentences(const Recording &recording, const Summary &summary);

}  // namespace curb::cli
