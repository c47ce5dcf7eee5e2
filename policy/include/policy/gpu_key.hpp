// Which GPUs a rule of the policy is for: the keys of its "gpu" object, and what they are held against.
// Thread-safe; may throw std::bad_alloc, which callers catch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "policy/result.hpp"

namespace curb::policy {

struct GpuKey {
    // From the least to the most specific: where several keys name one GPU, the later kind wins.
    enum class Kind : std::uint8_t {
        every,     // "*"
        cuda,      // "cuda:0": this process's ordinal
        nvml,      // "nvml:0": nvidia-smi's index
        pci,       // "0000:3b:00.0"
        gpu_uuid,  // "GPU-8f3a…", whole or its beginning
        mig_uuid,  // "MIG-8f3a…", the same of a MIG instance
    };
    Kind kind = Kind::every;
    int index = 0;     // of cuda and nvml
    std::string text;  // of the rest, in one spelling: equal keys name the same GPUs
    friend bool operator==(const GpuKey &, const GpuKey &) = default;
};

// Reads a key. PCI ids may be written as nvidia-smi, CUDA or lspci print them ("00000000:3B:00.0", "3b:00.0"), the
// digits of UUIDs in either case. The error is a sentence that says what is wrong and what would be right.
Result<GpuKey, std::string> parse_gpu_key(std::string_view key);
// Writes the key so that parse_gpu_key reads the same one.
std::string gpu_key_text(const GpuKey &key);

// One device of this process, by all its names, as the driver and NVML spell them; empty: not known. A MIG instance
// has a UUID of its own; index, PCI id and "GPU-" UUID are those of the GPU that it is a part of.
struct GpuIdentity {
    int ordinal = 0;
    std::optional<int> nvml_index;
    std::string pci;
    std::string gpu_uuid;
    std::string mig_uuid;  // empty: a whole GPU
};

// Whether `key` is for this device. A key of a GPU is for each of its MIG instances too.
bool names(const GpuKey &key, const GpuIdentity &gpu);
// "cuda:0 = nvml:1, 0000:3b:00.0, GPU-8f3a…"
std::string describe(const GpuIdentity &gpu);

}  // namespace curb::policy
