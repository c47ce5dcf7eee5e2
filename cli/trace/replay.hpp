// Replays a recorded run under other terms: each request goes through policy::decide, as in libcurb.so. Pure.
//
// Assumes that the program does the same again. So the held memory is the recorded one, minus allocations that the new
// terms refuse until their recorded free, minus memory that a release would have given back.
// docs/decisions/0026-reports-and-replay.md says what that leaves out.
#pragma once

#include <optional>
#include <vector>

#include "policy/policy.hpp"
#include "summary.hpp"

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
    policy::Bytes over_cap = 0;  // the most held beyond the cap, by memory that curb does not refuse: contexts, code
    policy::Bytes allowance = policy::kUnbounded;  // at the end
};

// Replays one GPU of the recording. `to_first_refusal`: stops there.
Replayed replay(const Recording &recording, int gpu, const ReplayTerms &terms, bool to_first_refusal = false);

// Returns the smallest cap, in whole MiB, that would have refused nothing as the only limit: without growth, waiting
// and keep_free. `total`: of the device; 0: not known. Returns nullopt if no cap up to 8 EiB is enough.
std::optional<policy::Bytes> smallest_cap(const Recording &recording, int gpu, policy::Bytes total);

}  // namespace curb::cli
