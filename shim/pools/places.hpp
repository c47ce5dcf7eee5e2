// The places of a pool that have had memory when its size was last read.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "abi/cuda_abi.h"
#include "policy/values/granule.hpp"

namespace curb::shim::pools {

// If the driver hands out such a place again, the pool has probably not grown. It may have: it can have returned the
// place meanwhile, and taken it again. So only the time of the next reading depends on this. Thread-safe.
class Places {
  public:
    [[nodiscard]] bool has(CUdeviceptr pointer, std::size_t bytes) const noexcept {
        const std::uint64_t wanted = entry(pointer, bytes), found = at(pointer).load(std::memory_order_relaxed);
        return found >> kCountBits == wanted >> kCountBits && found >= wanted;
    }
    void note(CUdeviceptr pointer, std::size_t bytes) noexcept {
        if (!has(pointer, bytes)) at(pointer).store(entry(pointer, bytes), std::memory_order_relaxed);
    }
    void forget() noexcept {
        for (auto &one : entries_) one.store(0, std::memory_order_relaxed);
    }

  private:
    static constexpr int kCountBits = 16;

    // The number of the first granule, and how many there are.
    static std::uint64_t entry(CUdeviceptr pointer, std::size_t bytes) noexcept {
        const std::uint64_t first = pointer / policy::kGranule, last = (pointer + bytes - 1) / policy::kGranule;
        return first << kCountBits | (last - first + 1);
    }
    [[nodiscard]] const std::atomic<std::uint64_t> &at(CUdeviceptr pointer) const noexcept {
        return entries_[pointer / policy::kGranule % entries_.size()];
    }
    std::atomic<std::uint64_t> &at(CUdeviceptr pointer) noexcept {
        return entries_[pointer / policy::kGranule % entries_.size()];
    }

    std::array<std::atomic<std::uint64_t>, 64> entries_{};
};

}  // namespace curb::shim::pools
