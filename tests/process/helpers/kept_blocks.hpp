// Helpers of the scenarios about the cache. cache_shim_test.cpp sets the policy: a cap of 1 GiB and 256 MiB of kept
// blocks unless it says otherwise.
#pragma once

#include <csignal>

#include <unistd.h>

#include "live.hpp"

namespace scenario {

inline constexpr std::uint64_t kMostKept = 256 * MiB;

// Counts the calls that reached the driver since its construction.
class Asked {
  public:
    Asked() : allocations_(curb_sim_calls("cuMemAlloc_v2")), frees_(curb_sim_calls("cuMemFree_v2")) {}
    [[nodiscard]] std::uint64_t allocations() const { return curb_sim_calls("cuMemAlloc_v2") - allocations_; }
    [[nodiscard]] std::uint64_t frees() const { return curb_sim_calls("cuMemFree_v2") - frees_; }

  private:
    std::uint64_t allocations_, frees_;
};

// Allocates and frees a block, and checks that curb keeps it.
inline CUdeviceptr keep(std::uint64_t bytes) {
    const CUdeviceptr block = take(bytes);
    const Asked asked;
    MUST(cuMemFree_v2(block));
    EXPECT_EQ(asked.frees(), 0U);
    return block;
}

// Frees the block. True if the free reached the driver.
inline bool driver_frees(CUdeviceptr block) {
    const Asked asked;
    MUST(cuMemFree_v2(block));
    return asked.frees() != 0;
}

inline bool soon(bool (*condition)()) { return within(std::chrono::seconds(5), condition); }

// Asks for a release, and checks that the device and the books then hold `bytes`.
inline void nothing_is_left_but(std::uint64_t bytes) {
    kill(getpid(), SIGUSR1);
    EXPECT(within(std::chrono::seconds(5), [=] { return curb_sim_held(0) == bytes; }));
    EXPECT(within(std::chrono::seconds(1), [=] { return shown_held() == bytes; }));
}

}  // namespace scenario
