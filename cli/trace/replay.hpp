// Replays recorded runs under other terms: each request goes through policy::decide, as in libcurb.so. Pure.
//
// Assumes that the programs do the same again. So the held memory is the recorded one, minus allocations that the new
// terms refuse until their recorded free, minus memory that a release would have given back.
// docs/decisions/0026-reports-and-replay.md says what that leaves out.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "policy/policy.hpp"
#include "trace/summary.hpp"

namespace curb::cli {

struct ReplayTerms {
    policy::GpuTerms gpu;
    policy::Bytes total = 0;  // of the device; 0: not known, so keep_free has no effect
    bool release_before_growth = true;
};

struct ReplayRefusal {
    std::uint64_t ns = 0;
    policy::Bytes bytes = 0;  // as the program asked
    policy::Bytes held = 0, limit = 0;
    policy::Kind kind{};
    policy::Limit why{};
    bool recorded = false;  // the recorded run refused it too
    std::uint64_t waited_ns = 0;
};

struct Replayed {
    std::size_t requests = 0, refused = 0;
    policy::Bytes refused_bytes = 0;
    std::size_t served_now = 0;           // requests that the recorded run refused and these terms grant
    std::size_t device_refused = 0;       // refused by the device itself, which no policy changes; not in `requests`
    std::vector<ReplayRefusal> refusals;  // the first kMostListed
    std::size_t waits = 0, waits_timed_out = 0;
    std::uint64_t waited_ns = 0, longest_wait_ns = 0;
    std::size_t releases = 0;
    policy::Bytes released = 0;
    std::vector<std::pair<std::uint64_t, policy::Bytes>> steps;  // of growth: when, and the allowance after it
    policy::Bytes peak = 0;
    std::uint64_t peak_ns = 0;
    // The most held beyond the cap, or beyond what the other processes left of the job's, by memory that curb does not
    // refuse: a first context, code.
    policy::Bytes over_cap = 0;
    policy::Bytes allowance = policy::kUnbounded;  // at the end
};

// One process on one GPU.
struct Rank {
    const Recording *recording = nullptr;
    int gpu = 0;  // ordinal in the recording
    ReplayTerms terms{};
};

// The processes of a job on one GPU. Their terms have the job's cap.
struct ReplayedJob {
    std::vector<Replayed> ranks;  // in the order of the arguments
    policy::Bytes peak = 0;       // held by all together
    std::int64_t peak_unix_ns = 0;
    // True if nothing was refused and no cap exceeded.
    [[nodiscard]] bool is_served() const noexcept;
};

// Replays processes of one job on one GPU, in the order of their clocks. `to_first_refusal`: stops there.
ReplayedJob replay(std::span<const Rank> ranks, bool to_first_refusal = false);
// Replays one process alone.
Replayed replay(const Recording &recording, int gpu, const ReplayTerms &terms);

// Returns the smallest cap, in whole MiB, that would have refused nothing as the only limit: without growth, waiting
// and keep_free. `total`: of the device; 0: not known. Returns nullopt if no cap up to 8 EiB is enough.
std::optional<policy::Bytes> smallest_cap(const Recording &recording, int gpu, policy::Bytes total);
// The same for the cap of a job with these processes on one GPU.
std::optional<policy::Bytes> smallest_job_cap(std::vector<Rank> ranks);

}  // namespace curb::cli
