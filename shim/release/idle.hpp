// Requests a release when the process has not used the GPU for the policy's release.idle.
#pragma once

#include <cstdint>
#include <optional>

namespace curb::shim::idle {

// NVML samples once a second, and reading a sample takes 1.5 ms (H200).
inline constexpr std::uint64_t kSampleMs = 1000;

// Returns when NVML last saw a kernel of the process running. nullopt if none ran since `since_ms`, or if NVML does not
// see the process (MIG, another pid namespace). Only NVML shows a kernel that runs for minutes. Calls NVML.
std::optional<std::uint64_t> seen_running(std::uint64_t since_ms) noexcept;

// Checks for use of the GPU since the last call, and requests a release if one is due. Returns the milliseconds until
// the next call. nullopt if the policy has no release.idle. On the worker. Calls NVML.
std::optional<std::uint64_t> poll() noexcept;

}  // namespace curb::shim::idle
