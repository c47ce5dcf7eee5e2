// Limits that other systems (container runtimes, Kubernetes plug-ins, MPS) set by variables. Pure. Thread-safe. May
// throw std::bad_alloc.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "policy/policy.hpp"

namespace curb::policy {

// Returns the variables. A name that ends in "_" stands for one variable per device: CUDA_DEVICE_MEMORY_LIMIT_0.
std::span<const char *const> handed_in_names() noexcept;
// True if the variable, as "NAME=value", sets a cap.
[[gnu::cold]] bool hands_in_cap(const char *variable) noexcept;

// Reads the variable `name` into `into`. `name`: one of handed_in_names(), with the device's number if it ends in "_".
// Returns the error; nullopt on success.
//
//   NVIDIA_GPU_MEMORY_LIMIT, NVIDIA_GPU_MEMORY_REQUEST   MiB (NVIDIA's container toolkit, GPU Operator)
//   GPU_MEMORY_LIMIT                                     bytes (KAI scheduler)
//   CUDA_DEVICE_MEMORY_LIMIT, CUDA_DEVICE_MEMORY_LIMIT_N 4g, 4096m, 4194304k, or bytes (HAMi)
//   CUDA_MPS_PINNED_DEVICE_MEM_LIMIT                     0=4G,1=4096M (MPS)
//
// A number of bytes below 1,048,576 counts as MiB: some systems write MiB there, and no limit is below a MiB.
std::optional<std::string> read_handed_in(const std::string &name, std::string_view text, HandedIn &into);

}  // namespace curb::policy
