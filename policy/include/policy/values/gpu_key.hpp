// The keys of the policy's "gpu" object, and the device names that they match. Thread-safe. May throw std::bad_alloc.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "policy/values/result.hpp"

namespace curb::policy {

struct GpuKey {
    // From the least to the most specific: if several keys name one GPU, the last kind wins.
    enum class Kind : std::uint8_t {
        every,     // "*"
        cuda,      // "cuda:0": this process's ordinal
        nvml,      // "nvml:0": nvidia-smi's index
        pci,       // "0000:3b:00.0"
        gpu_uuid,  // "GPU-8f3a…", whole or a prefix
        mig_uuid,  // "MIG-8f3a…", the same of a MIG instance
    };
    Kind kind = Kind::every;
    int index = 0;     // of cuda and nvml
    std::string text;  // of the others, normalized: equal keys name the same GPUs
    friend bool operator==(const GpuKey &, const GpuKey &) = default;
};

// Reads a key. Accepts PCI ids as nvidia-smi, CUDA or lspci print them ("00000000:3B:00.0", "3b:00.0") and UUIDs in
// either case. The error names the fault and a correct key.
Result<GpuKey, std::string> parse_gpu_key(std::string_view key);
// Writes the key as parse_gpu_key reads it.
std::string gpu_key_text(const GpuKey &key);

// All names of a device of this process, as the driver and NVML spell them; empty: unknown. A MIG instance has a UUID
// of its own, and the index, PCI id and "GPU-" UUID of its GPU.
struct GpuIdentity {
    int ordinal = 0;
    std::optional<int> nvml_index;
    std::string pci;
    std::string gpu_uuid;
    std::string mig_uuid;  // empty: a whole GPU
};

// True if `key` names this device. A key of a GPU names its MIG instances too.
bool names(const GpuKey &key, const GpuIdentity &gpu);
// Returns "cuda:0 = nvml:1, 0000:3b:00.0, GPU-8f3a…"
std::string describe(const GpuIdentity &gpu);

}  // namespace curb::policy
