// Releases memory when the process's cgroup uses more of a GPU than its soft limit. MPS may end such a process when
// another one needs the memory.
// Source: https://docs.nvidia.com/deploy/mps/mpsv3-memory-partitioning.html
#pragma once

#include <cstdint>
#include <optional>

namespace curb::shim::soft_limit {

// Requests a release if the limit is exceeded, at most every 10 s. Returns the milliseconds until the next call.
// nullopt if the driver knows no such limits (before 615), or NVML is not loaded. On the worker. Calls NVML.
std::optional<std::uint64_t> poll() noexcept;

}  // namespace curb::shim::soft_limit
