// Caps that `curb cap` sets while a process runs, each for the devices that a key names. They replace those of the
// policy. Pure. May throw std::bad_alloc, and is then unchanged.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "policy/policy.hpp"
#include "policy/result.hpp"

namespace curb::policy {

class LiveCaps {
  public:
    // Sets the cap of the devices that the key names; nullopt removes all that any key has set for them. `gpus`: all
    // GPUs of the process, the same list in each call. Returns the indexes of the named ones. The error says why the
    // key names none and lists the GPUs.
    Result<std::vector<std::size_t>, std::string> set(const GpuKey &key, std::optional<Size> cap,
                                                      std::span<const GpuIdentity> gpus);

    // Returns the live cap of a device, by the most specific key. nullopt if none is set.
    [[nodiscard]] std::optional<Size> of(std::size_t index, const GpuIdentity &gpu) const;

  private:
    std::vector<std::vector<GpuRule>> by_gpu_;
};

}  // namespace curb::policy
