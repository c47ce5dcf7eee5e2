// Reports refusals, waits and growth: in the log with figures and remedies, in the trace, and in the counters of
// `curb ps`.
//
// Thread-safe. Keeps errno.
#pragma once

#include <string>
#include <vector>

#include "control/messages.hpp"
#include "control/status.hpp"
#include "device/devices.hpp"
#include "device/wait_queue.hpp"
#include "limits/in_force.hpp"
#include "policy/decisions/limit.hpp"

namespace curb::shim::reports {

// The limit that a request has hit.
struct LimitHit {
    Kind kind{};
    policy::Limit why{};
    Bytes held = 0;
    Bytes kept = 0;          // kept free for code that the driver loads: neither held nor granted
    bool is_behind = false;  // requests of other processes that wait for longer come first
    bool has_room = false;   // the driver refuses it although the device has much more than that free
};

// Records a refusal: which limit, and the remedy. bytes = 0 means code loading. Counts it. Logs the first one by a
// limit and the first one by a full device as warnings, the others at level info. A size larger than the device is only
// traced: programs probe for free memory with such sizes, and no policy could serve them.
void refusal(Device &device, const Snapshot::Gpu &gpu, Bytes bytes, const LimitHit &hit) noexcept;
// Returns the last 16 refusals, the newest last. Throws std::bad_alloc.
std::vector<control::Refusal> last_refusals();
// Records the refusal of a context that alone takes more than the cap.
void context_refused(Device &device, Bytes cost) noexcept;
// True if there were more refusals than those that were logged as warnings. Async-signal-safe.
bool has_sum() noexcept;
// Logs how many requests were refused, and the last one of them, if has_sum().
void sum_up() noexcept;
// Traces a refusal for pressure (Pressure): the caller frees its cache and retries.
void refused_for_pressure(Device &device, const Snapshot::Gpu &gpu, Bytes bytes, const LimitHit &hit) noexcept;

// True if a request that exceeds this limit waits until its turn comes (suspend.turn), and not only for growth.wait.
bool waits_for_turn(const policy::SuspendPolicy &policy, policy::Limit why) noexcept;
// Logs at level info that a request begins to wait.
void waiting(Device &device, const Snapshot::Gpu &gpu, Bytes bytes, const LimitHit &hit) noexcept;
// Logs that a request has waited for a second, and for what. The first as a warning, the others at level info.
void waits_long(Device &device, const Snapshot::Gpu &gpu, Bytes bytes, const LimitHit &hit,
                const wait_queue::Wait &wait) noexcept;
// Logs at level info that a waiting request was granted.
void waited(const Device &device, Kind kind, Bytes bytes, const wait_queue::Wait &wait) noexcept;
// Logs a changed allowance at level info, as in "cuda:0 falls back to 2 GiB".
void allowance(const Device &device, const char *how, Bytes bytes) noexcept;

// Returns the log line for live caps: "curb cap: cuda:0 cap 8 GiB -> 6 GiB". Throws std::bad_alloc.
std::string cap_text(const control::CapReport &report, bool of_job);

// Returns the log line with the bytes held on the device by kind, the kept blocks, and NVML's figure. Throws
// std::bad_alloc.
std::string books_text(Device &device);

}  // namespace curb::shim::reports
