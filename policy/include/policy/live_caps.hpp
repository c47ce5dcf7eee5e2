// Caps that are set from outside while a process runs, each for the devices that a key names, in the place of those of
// its policy. Pure; may throw std::bad_alloc, and is then as it was.
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
    // Sets the cap for the devices that the key names; none: takes away whatever was set for these, by any key. `gpus`:
    // all of the process, in their order, the same ones each time. Returns which the key names, as indexes into `gpus`.
    // The error says why it names none, and which there are.
    Result<std::vector<std::size_t>, std::string> set(const GpuKey &key, std::optional<Size> cap,
                                                      std::span<const GpuIdentity> gpus);

    // Of this device, that of the most specific key, as in policies. None: the policy's holds.
    [[nodiscard]] std::optional<Size> of(std::size_t index, const GpuIdentity &gpu) const;

  private:
    std::vector<std::vector<GpuRule>> by_gpu_;
};

}  // namespace curb::policy
