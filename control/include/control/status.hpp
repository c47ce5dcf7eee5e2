// The status of a capped process, as `curb ps`, `curb metrics` and `curb doctor` get it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "control/release_report.hpp"
#include "policy/decisions/limit.hpp"
#include "policy/kinds.hpp"
#include "policy/policy.hpp"

namespace curb::control {

// Milliseconds since 1970 of the process's clock; 0: never.
using UnixMs = std::int64_t;
UnixMs unix_now() noexcept;

using ByStep = std::array<policy::Bytes, policy::kSteps>;
using ByLimit = std::array<std::uint64_t, policy::kLimits>;

// The process's ledger of one device, and the limits in force. Sizes in bytes.
struct GpuStatus {
    int ordinal = 0;                         // as this process counts devices
    std::string uuid;                        // "GPU-…", of an instance "MIG-…"
    std::string parent;                      // of an instance: the GPU that it is part of, "GPU-…"
    policy::Bytes total = 0;                 // of the device, as the driver says
    policy::Bytes held = 0;                  // in all
    policy::ByKind kinds{};                  // of `held`
    policy::Bytes cached = 0;                // of `held`: kept blocks
    std::vector<policy::Bytes> pools;        // reserved by each stream-ordered pool, the largest first
    int contexts = 0;                        // live ones whose creation curb saw
    std::optional<policy::Bytes> cap;        // in force; nullopt: none
    std::optional<policy::Bytes> job_cap;    // in force for all processes of its job together; nullopt: none
    policy::Bytes job_held = 0;              // by all processes of its job; 0 without a job
    std::optional<policy::Bytes> allowance;  // nullopt: the policy has no growth
    std::optional<policy::Size> live_cap;    // set by `curb cap`; nullopt: none
    std::string handed_in{};                 // the variable of another system that the cap comes from; empty: none
    bool ceiling = false;                    // the cap in force is that of the machine's ceiling
    ByLimit refused{};                       // refused requests
    std::uint64_t waited = 0;                // requests that have waited for memory
    std::uint64_t waiting = 0;               // requests that wait now
    ByStep released{};                       // bytes that releases gave back
    bool shares_host_memory = false;         // its memory is the host's
    friend bool operator==(const GpuStatus &, const GpuStatus &) = default;
};

struct PolicyStatus {
    std::string file;       // empty: none
    std::string cap;        // CURB_CAP; empty: not set
    std::string ceiling;    // the machine's ceiling, if it sets anything; else empty
    std::string rule;       // "rule 2 \"bert\""; empty: none
    bool unusable = false;  // the policy was invalid from the start: every request is refused
    UnixMs since = 0;       // in force since then
    std::string error;      // why the last edit is not in force; empty: it is
    std::string flags{};    // "CURB_WAIT=30s GPU_MEMORY_LIMIT=8192"; empty: none is set
    friend bool operator==(const PolicyStatus &, const PolicyStatus &) = default;
};

struct TraceStatus {
    std::string file;
    std::uint64_t events = 0;   // written
    std::uint64_t dropped = 0;  // lost, because the file could not be written fast enough
    std::string error;          // why the trace has stopped; empty: it has not
    friend bool operator==(const TraceStatus &, const TraceStatus &) = default;
};

// What one way of moving did in the last nap: curb's own copy, or the driver.
struct MoveStatus {
    policy::Bytes bytes = 0;
    std::uint64_t out_ms = 0;   // it took so long to host memory
    std::uint64_t back_ms = 0;  // and back; 0: not yet
    friend bool operator==(const MoveStatus &, const MoveStatus &) = default;
};

// Naps of the process: it leaves its GPUs by itself when it is idle (the policy's suspend.idle).
struct NapStatus {
    bool out = false;                   // its memory is in host memory now
    UnixMs since = 0;                   // of this nap
    std::uint64_t count = 0;            // naps so far, this one included
    policy::Bytes bytes = 0;            // that the last one took from the GPUs: light + zeros + deep
    std::uint64_t waited_ms = 0;        // the call that ended the last one waited so long
    std::string refused;                // why the process could not leave at the last attempt; empty: it could
    policy::Bytes bytes_total = 0;      // moved by all naps
    std::uint64_t waited_total_ms = 0;  // by the calls that ended them
    UnixMs no_room_since = 0;           // since when it has waited for room to come back; 0: it does not wait
    bool leaving = false;               // its memory is on the way to host memory
    bool is_light = false;              // out, but what only the driver can move is still on the GPUs
    MoveStatus light{};                 // copied by curb
    policy::Bytes zeros = 0;            // pages of zeros, which are not copied
    MoveStatus deep{};                  // moved by the driver; older libraries do not say
    policy::Bytes light_total = 0;      // by all naps, as `bytes_total`
    policy::Bytes zeros_total = 0;
    std::string stays{};           // why a part stays on the GPUs in a nap, with its bytes; empty: none does
    std::string not_light{};       // why curb itself moves none of its memory; empty: it does
    policy::Bytes kept = 0;        // host memory that is kept for the next nap
    bool illegal_address = false;  // CUDA_ERROR_ILLEGAL_ADDRESS was returned, and curb makes blocks of its own
    bool stays_out = false;        // out, by curb suspend: no call ends it, but curb resume
    friend bool operator==(const NapStatus &, const NapStatus &) = default;
};

// Turns of the process (the policy's suspend.turn).
struct TurnStatus {
    std::uint64_t length_ms = 0;
    UnixMs since = 0;            // of this turn; 0: it is out, or holds no memory of a GPU
    std::uint64_t count = 0;     // turns so far, this one included
    std::uint64_t moved_ms = 0;  // that the moves out and back have taken so far
    friend bool operator==(const TurnStatus &, const TurnStatus &) = default;
};

struct Refusal {
    UnixMs at = 0;
    int gpu = 0;              // ordinal
    policy::Bytes bytes = 0;  // asked for; 0: code, whose size is not known before it is loaded
    policy::Limit why{};
    policy::Bytes held = 0;
    policy::Bytes limit = 0;  // the cap, the allowance or keep_free that refused it; 0: none of these
    friend bool operator==(const Refusal &, const Refusal &) = default;
};

// A request that waits for memory now.
struct Waiting {
    int gpu = 0;     // ordinal
    int thread = 0;  // its id, as ps -L shows it
    UnixMs since = 0;
    policy::Bytes bytes = 0;  // asked for
    policy::Limit why{};
    UnixMs until = 0;            // it fails then; 0: it waits for its turn (suspend.turn), without a limit of time
    std::optional<UnixMs> step;  // when the next growth step is due; nullopt: none helps
    friend bool operator==(const Waiting &, const Waiting &) = default;
};

struct PastRelease {
    UnixMs at = 0;  // when it had ended
    ReleaseReport report;
    friend bool operator==(const PastRelease &, const PastRelease &) = default;
};

// A library whose calls of the driver bypass curb.
struct Bypass {
    std::string library;  // path
    std::string how;      // "binds cuMemAlloc_v2 of the driver directly"
    friend bool operator==(const Bypass &, const Bypass &) = default;
};

inline constexpr std::size_t kMostWaits = 32;

struct Status {
    int pid = 0;
    std::string version;         // of the library in the process
    UnixMs since = 0;            // when curb began to watch it: its first cuInit
    std::string signal;          // for a release: "SIGUSR1", "none"
    std::string signal_trouble;  // why the policy's signal starts no release; empty: it does
    PolicyStatus policy;
    std::string job;                    // the job whose cap it shares: "tree 4711-8f3a2c11"; empty: none
    std::optional<TraceStatus> trace;   // nullopt: the policy names no trace file
    std::optional<NapStatus> nap;       // nullopt: the policy has no naps
    std::optional<TurnStatus> turn;     // nullopt: the policy has no turns
    std::vector<GpuStatus> gpus;        // all that the process can use
    bool releasing = false;             // a release is under way
    std::vector<Waiting> waits;         // the longest first; at most kMostWaits
    std::vector<Refusal> refusals;      // the last ones, the newest last
    std::vector<PastRelease> releases;  // the last ones, the newest last
    std::vector<Bypass> bypasses;       // only for StatusRequest::detail
    // Frameworks whose allocator keeps memory until the process ends; only for StatusRequest::detail.
    std::vector<std::string> returns_nothing;
    friend bool operator==(const Status &, const Status &) = default;
};

// Returns the refused requests of all limits together.
std::uint64_t refused(const GpuStatus &gpu);
// Returns the bytes that all release steps gave back.
policy::Bytes released(const GpuStatus &gpu);

}  // namespace curb::control
