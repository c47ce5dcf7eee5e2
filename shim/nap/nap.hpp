// Naps (the policy's suspend.idle): a process that has not called the driver for that time leaves its GPUs, and its
// next call brings it back. A helper, `curb suspend --nap`, moves it, because a process cannot lock itself.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "control/status.hpp"
#include "policy/values/result.hpp"
#include "policy/values/size.hpp"

namespace curb::shim::nap {

// Begins a nap if the process has been idle for long enough. Returns the milliseconds until the next call. nullopt if
// the policy has no naps. On the worker. Calls NVML.
std::optional<std::uint64_t> poll() noexcept;

// True from the beginning of a nap, before it closes the gate, until its end. Thread-safe.
bool is_under_way() noexcept;

// For `curb suspend --until-used`: has the worker begin a nap, whatever the policy says. status() shows the result.
// Returns why no nap can begin; empty if one does. Thread-safe. May throw std::bad_alloc.
std::string begin_soon();

// Returns why the process cannot leave its GPUs now. Empty if it knows no reason. Thread-safe.
std::string why_not() noexcept;

// For `curb suspend`: has the worker begin a nap of curb's own moves alone, or takes over one. No call of the program
// ends it for `lease_ms`, nor while keep_out() renews that. Returns whether it is out; ask again until it is, or until
// status() shows a refusal. An error says why there will be no such nap. Thread-safe. May throw std::bad_alloc.
policy::Result<bool, std::string> leave_lightly(std::uint64_t lease_ms);
// Renews that lease, or makes the nap a suspend: then only end_soon() ends it. `moved`: what the client has had the
// driver move. False if the process is not in such a nap. Thread-safe.
bool keep_out(std::uint64_t lease_ms, bool for_good, policy::Bytes moved) noexcept;

// For `curb suspend`: turns a deep nap into a suspend, which `curb resume` ends and a call does not. False if the
// process is in none. Thread-safe.
bool stay_out() noexcept;

// For `curb resume`: ends a nap in which the driver has moved nothing, and what keep_out() keeps out. Does nothing in
// another state. Thread-safe.
void end_soon() noexcept;

// Records for the trace that `curb suspend` has moved `bytes` to host memory.
void moved_out_by_command(policy::Bytes bytes) noexcept;

// Returns the status of naps. nullopt if the policy has no naps and none was requested. Thread-safe. May throw
// std::bad_alloc.
std::optional<control::NapStatus> status();

}  // namespace curb::shim::nap
