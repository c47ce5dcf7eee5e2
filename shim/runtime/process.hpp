// The policy of this process: where it came from, and putting it in force.
#pragma once

#include <cstdint>
#include <string>

#include "config/load.hpp"
#include "in_force.hpp"
#include "policy/policy.hpp"

namespace curb::shim {

namespace process {

// Reads the policy and puts it in force. Once, by startup. `environment` looks one variable up. Throws std::bad_alloc
// before anything has begun.
void begin(const char *(*environment)(const char *));
// Takes the signal that the policy in force names.
void take_signal() noexcept;

// The process as rules see it: as it was at its first use of CUDA. Later some programs write over their arguments, to
// show a title, and over the environment behind them. Used by one thread at a time; only once active.
policy::Subject subject(bool with_user);

// When curb began to watch it, in milliseconds since 1970.
std::int64_t since() noexcept;
// The signal that the policy names for releases: "SIGUSR1", "none".
std::string release_signal();
// Why it asks for no release: "the program ignores SIGUSR1". Empty: it does, or the policy names none.
std::string signal_trouble();
// Logs that trouble if it is new. On the worker, after the program has set an action for the signal.
void signal_was_set() noexcept;

// Puts a policy in force from here on and says what has changed. Releases at once if a device holds more than its cap
// allows; whoever waits for room looks again. Calls no driver: the worker does what needs one. Returns what changed, a
// line each, and what in it has no effect.
struct Changed {
    std::vector<std::string> changes;
    std::vector<std::string> notes;
};
// Throws std::bad_alloc before anything has changed.
Changed enforce(const config::Loaded &loaded);

// The same with caps in the place of the policy's. By the control thread, so nothing in it waits.
control::Reply enforce(const policy::GpuKey &key, std::optional<policy::Size> cap) noexcept;
// On the worker: what a new policy or cap needs the driver for. `measure_if_stale`: the books may not have told yet
// that more is held than a cap allows.
void settle(bool measure_if_stale) noexcept;

}  // namespace process
}  // namespace curb::shim
