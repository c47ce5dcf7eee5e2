// The kept blocks of one device, indexed by context and size, by address, and by age. Calls no driver, knows no policy.
//
// Thread-safe; holds its lock for a few look-ups, or for one pass over all blocks when a context ends. A block is taken
// together with a pin of its context, so that a thread that destroys the context waits until the block has been handed
// out or freed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>

#include "accounting/allocations.hpp"
#include "base/reusing_map.hpp"
#include "contexts/contexts.hpp"

namespace curb::shim {

struct KeptBlock {
    CUdeviceptr pointer = 0;
    allocations::Allocation allocation;
    contexts::Id context = 0;
    std::uint64_t since_ms = 0;  // when the program freed it
};

class KeptBlocks {
  public:
    using Block = KeptBlock;
    using Pin = std::optional<contexts::Pin>;

    // False if the block's context is being destroyed or there is no host memory.
    bool put(const Block &block) noexcept;

    // Takes the newest block of exactly `bytes` of this context, which the caller has pinned.
    std::optional<Block> take(contexts::Id context, Bytes bytes) noexcept;
    // Takes the oldest block, if it was freed at `latest_ms` or before. Skips contexts that are being destroyed.
    std::optional<Block> take_oldest(std::uint64_t latest_ms, Pin &pin) noexcept;
    // Takes the block at this address.
    std::optional<Block> take_at(CUdeviceptr pointer, Pin &pin) noexcept;
    // Takes all blocks of a destroyed context. Calls `taken` with each, without the lock.
    template <class Taken>
    void take_all_of(CUcontext context, Taken taken) noexcept {
        std::array<Block, 64> some;
        for (std::size_t size = some.size(); size == some.size();) {
            size = take_some_of(context, some);
            for (std::size_t i = 0; i < size; ++i) taken(some[i]);
        }
    }

    // Returns when the oldest block was freed.
    std::optional<std::uint64_t> oldest_ms() noexcept;

  private:
    struct Size {
        contexts::Id context;
        Bytes bytes;
        friend bool operator==(const Size &, const Size &) = default;
    };
    struct Hash {
        std::size_t operator()(const Size &size) const noexcept {
            return (size.bytes ^ size.context << 48) * 0x9E3779B97F4A7C15ULL >> 7;
        }
    };
    using Pointers = std::list<CUdeviceptr>;
    struct Entry {
        Block block;
        Pointers::iterator in_age, in_size;
    };
    using Entries = ReusingMap<CUdeviceptr, Entry>;
    using Sizes = std::unordered_map<Size, Pointers, Hash>;

    // Returns how many it has taken.
    std::size_t take_some_of(CUcontext context, std::span<Block> some) noexcept;
    Block remove(Entries::iterator entry, Pointers &alike) noexcept;
    Block remove(Entries::iterator entry) noexcept;

    std::mutex mutex_;
    Entries entries_;
    Pointers by_age_;  // the oldest first
    Sizes by_size_;    // the oldest first
    Pointers spare_;   // two nodes for the next block, or none
};

}  // namespace curb::shim
