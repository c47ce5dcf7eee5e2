// Caps that `curb cap` sets while a process runs, each for the devices that a key names. They replace the policy's
// caps. Pure. May throw std::bad_alloc, and then changes nothing.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "policy/policy.hpp"
#include "policy/values/result.hpp"

namespace curb::policy {

class LiveCaps {
  public:
    // Sets the cap of the devices that the key names; nullopt removes all their live caps, whichever key set them.
    // `gpus`: all GPUs of the process, the same list in each call. Returns the indexes of the named devices. The error
    // says why the key names none and lists the GPUs.
    Result<std::vector<std::size_t>, std::string> set(const GpuKey &key, std::optional<Size> cap,
                                                      std::span<const GpuIdentity> gpus);

    // Returns the live cap that the most specific key has set for a device. nullopt if none is set.
    [[nodiscard]] std::optional<Size> of(std::size_t index, const GpuIdentity &gpu) const;

  private:
    std::vector<std::vector<GpuRule>> by_gpu_;
};

}  // namespace curb::policy
