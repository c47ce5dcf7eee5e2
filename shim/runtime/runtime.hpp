// The policy of this process: reads it, puts it in force, and applies its signal.
#pragma once

#include <cstdint>
#include <string>

#include "config/load.hpp"
#include "limits/in_force.hpp"
#include "policy/policy.hpp"

namespace curb::shim::runtime {

// Reads the policy and puts it in force. Returns it, or why it cannot be used: then everything is refused. Called by
// startup. `environment` returns a variable's value. Throws std::bad_alloc; then startup may call it again.
policy::Result<config::Loaded, config::Diagnostics> begin(const char *(*environment)(const char *));
// Handles the release signal that the policy in force names. Logs if that is impossible.
void take_signal() noexcept;

// Returns the process as rules see it, as it was at begin(): some programs overwrite their arguments later, to show a
// title, and the environment behind them. Not thread-safe: for begin() and then curb-policy.
policy::Subject subject(bool with_user);

// Returns when curb became active in this process, in milliseconds since 1970.
std::int64_t since() noexcept;
// Returns the name of the policy's release signal: "SIGUSR1", "none".
std::string release_signal();
// Returns why that signal does not request releases: "the program ignores SIGUSR1". Empty if it does, or for "none".
std::string signal_trouble();
// Logs signal_trouble() if it is new. On the worker, after the program has set an action for the signal.
void check_signal() noexcept;

// Puts a policy in force and logs the changes. Wakes waiting requests, and requests a release if a device exceeds its
// cap. Calls no driver: the worker does the rest. Throws std::bad_alloc before the policy is in force.
void enforce(const config::Loaded &loaded);

// Sets a live cap of the process or of its job, with the same effects. Does not block, because the control thread calls
// it. Thread-safe.
control::Reply enforce(const policy::GpuKey &key, std::optional<policy::Size> cap, bool of_job) noexcept;
// Applies the parts of a new policy or cap that need driver calls. On the worker. `measure_if_stale`: reconcile first,
// because the ledger may not show yet that a device exceeds its cap.
void apply_with_driver(bool measure_if_stale) noexcept;

}  // namespace curb::shim::runtime
