// What a capped process says of itself: as `curb ps`, `curb metrics` and `curb doctor` are told it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "control/release_report.hpp"
#include "policy/kinds.hpp"
#include "policy/obstacle.hpp"
#include "policy/policy.hpp"

namespace curb::control {

// Milliseconds since 1970 of the process's clock; 0: never.
using UnixMs = std::int64_t;
UnixMs unix_now() noexcept;

using ByStep = std::array<policy::Bytes, policy::kSteps>;
using ByObstacle = std::array<std::uint64_t, policy::kObstacles>;

// What the process holds of one device, by its own books, and under which terms. Sizes in bytes.
struct GpuStatus {
    int ordinal = 0;                         // as this process counts its devices
    std::string uuid;                        // "GPU-…", of an instance "MIG-…"
    std::string parent;                      // of an instance: the GPU that it is part of, "GPU-…"
    policy::Bytes total = 0;                 // of the device, as the driver says
    policy::Bytes held = 0;                  // everything
    policy::ByKind kinds{};                  // what for
    policy::Bytes cached = 0;                // of it, blocks that curb keeps for reuse
    std::vector<policy::Bytes> pools;        // what each stream-ordered pool has reserved, the largest first
    int contexts = 0;                        // live ones that were seen being made
    std::optional<policy::Bytes> cap;        // in force; absent: none
    std::optional<policy::Bytes> allowance;  // until the next growth step; absent: the policy names none
    std::optional<policy::Size> live_cap;    // what `curb cap` has set; absent: nothing
    bool ceiling = false;                    // the cap in force is the machine's ceiling's
    ByObstacle refused{};                    // requests, by what they met
    std::uint64_t waited = 0;                // requests that were held for room
    std::uint64_t waiting = 0;               // requests that wait for room now
    ByStep released{};                       // what releases gave back
    friend bool operator==(const GpuStatus &, const GpuStatus &) = default;
};

struct PolicyStatus {
    std::string file;       // empty: none
    std::string cap;        // CURB_CAP; empty: not set
    std::string ceiling;    // the machine's, if it says something; else empty
    std::string rule;       // "rule 2 \"bert\""; empty: none
    bool unusable = false;  // it could not be used from the start: everything is refused
    UnixMs since = 0;       // in force
    std::string error;      // why the last edit is not in force; empty: it is
    friend bool operator==(const PolicyStatus &, const PolicyStatus &) = default;
};

struct TraceStatus {
    std::string file;
    std::uint64_t events = 0;   // written
    std::uint64_t dropped = 0;  // because nothing could be written fast enough
    std::string error;          // why nothing is written any more; empty: it is
    friend bool operator==(const TraceStatus &, const TraceStatus &) = default;
};

struct Refusal {
    UnixMs at = 0;
    int gpu = 0;              // ordinal
    policy::Bytes bytes = 0;  // asked for; 0: code, whose size nobody knows before it is loaded
    policy::Obstacle why{};
    policy::Bytes held = 0;
    policy::Bytes limit = 0;  // that it met: the cap, the allowance, what is to stay free; 0: of others
    friend bool operator==(const Refusal &, const Refusal &) = default;
};

// A request that waits for room now.
struct Waiting {
    int gpu = 0;     // ordinal
    int thread = 0;  // its id, as ps -L shows it
    UnixMs since = 0;
    policy::Bytes bytes = 0;  // asked for
    policy::Obstacle why{};
    UnixMs until = 0;            // it fails
    std::optional<UnixMs> step;  // the next growth step is due; absent: none helps it
    friend bool operator==(const Waiting &, const Waiting &) = default;
};

struct PastRelease {
    UnixMs at = 0;  // when it had ended
    ReleaseReport report;
    friend bool operator==(const PastRelease &, const PastRelease &) = default;
};

// A library whose calls of the driver do not come through curb.
struct Passed {
    std::string library;  // path
    std::string how;      // "binds cuMemAlloc_v2 of the driver directly"
    friend bool operator==(const Passed &, const Passed &) = default;
};

inline constexpr std::size_t kMostWaits = 32;

struct Status {
    int pid = 0;
    std::string version;         // of the library in the process
    UnixMs since = 0;            // when curb began to watch it: its first cuInit
    std::string signal;          // that asks for a release: "SIGUSR1", "none"
    std::string signal_trouble;  // why the signal that the policy names asks for none; empty: it does
    PolicyStatus policy;
    std::optional<TraceStatus> trace;   // absent: the policy names no file
    std::vector<GpuStatus> gpus;        // all that the process sees
    bool releasing = false;             // a release is under way
    std::vector<Waiting> waits;         // requests that wait now, the longest first; at most kMostWaits
    std::vector<Refusal> refusals;      // the last ones, the newest last
    std::vector<PastRelease> releases;  // the last ones, the newest last
    std::vector<Passed> passed;         // only where it was asked for
    // Frameworks whose allocator keeps memory until the process ends; only where it was asked for.
    std::vector<std::string> returns_nothing;
    friend bool operator==(const Status &, const Status &) = default;
};

std::uint64_t refused(const GpuStatus &gpu);
policy::Bytes released(const GpuStatus &gpu);

}  // namespace curb::control
