// Naps (the policy's suspend.idle): a process that has not called the driver for so long leaves its GPUs, and its next
// call brings it back. A helper, `curb suspend --nap`, makes the moves, because a process cannot lock itself.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "control/status.hpp"
#include "policy/size.hpp"

namespace curb::shim::nap {

// Begins a nap if the process has been idle for long enough. Returns the milliseconds until the next call. nullopt if
// the policy has no naps. On the worker, which calls gate::watch() after its own calls of the driver. Calls NVML.
std::optional<std::uint64_t> poll() noexcept;

// For `curb suspend --until-used`: begins a nap now, whatever the policy says. status() tells what becomes of it.
// Thread-safe.
void begin_soon() noexcept;

// Returns why the process cannot leave its GPUs now, as far as it can tell itself; empty: it can. Thread-safe.
std::string stays() noexcept;

// For `curb suspend`: a process that naps stays out until `curb resume`, and its calls no longer bring it back. False
// if it does not nap.
bool stay_out() noexcept;

// For `curb suspend` and `curb resume`: the process is out, with so many bytes in host memory, or comes back, which
// took so long: the gate opens next. For the trace.
void left_by_command(policy::Bytes bytes) noexcept;
void brought_back(std::uint64_t took_ms) noexcept;

// nullopt if the policy has no naps and none was asked for. Thread-safe. May throw std::bad_alloc.
std::optional<control::NapStatus> status();

}  // namespace curb::shim::nap
