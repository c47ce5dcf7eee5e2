// The blocks of pools, and the units in which the driver takes and returns their memory: it returns a unit once no live
// block lies in it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include "policy/values/granule.hpp"
#include "policy/values/size.hpp"
#include "trace/recording.hpp"

namespace curb::cli {

class PoolUnits {
  public:
    void add(std::uint64_t pointer, policy::Bytes bytes) {
        live_ += bytes;
        each(pointer, bytes, [&](std::uint64_t unit) { ++blocks_[unit]; });
    }
    void remove(std::uint64_t pointer, policy::Bytes bytes) {
        live_ -= bytes;
        each(pointer, bytes, [&](std::uint64_t unit) {
            const auto found = blocks_.find(unit);
            if (found != blocks_.end() && --found->second == 0) blocks_.erase(found);
        });
    }
    // Returns the bytes of the live blocks.
    [[nodiscard]] policy::Bytes live() const noexcept { return live_; }
    // Returns the bytes of the units in which a block lies.
    [[nodiscard]] policy::Bytes in_use() const noexcept { return blocks_.size() * kUnit; }
    // Returns the bytes of this block's units in which no other lies.
    [[nodiscard]] policy::Bytes unused_under(std::uint64_t pointer, policy::Bytes bytes) const {
        policy::Bytes out = 0;
        each(pointer, bytes, [&](std::uint64_t unit) { out += blocks_.contains(unit) ? 0 : kUnit; });
        return out;
    }

  private:
    static constexpr policy::Bytes kUnit = policy::kPoolUnit;
    template <class Visit>
    static void each(std::uint64_t pointer, policy::Bytes bytes, Visit visit) {
        constexpr policy::Bytes kMostUnits = kLargestHeld / kUnit / 1024;  // a TiB: a trace may have any sizes
        if (bytes == 0) return;
        const std::uint64_t first = pointer / kUnit, last = policy::added(pointer, bytes - 1) / kUnit;
        for (std::uint64_t unit = first; unit <= last && unit - first < kMostUnits; ++unit) visit(unit);
    }
    std::unordered_map<std::uint64_t, std::size_t> blocks_;  // by unit: how many live blocks lie in it
    policy::Bytes live_ = 0;
};

}  // namespace curb::cli
