#include "allocations.hpp"

#include <array>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace curb::shim::allocations {
namespace {

constexpr std::size_t kShards = 64;

template <class Value>
struct Shards {
    struct alignas(64) Shard {  // a cache line each: neighbours are locked by different threads
        std::mutex mutex;
        std::unordered_map<CUdeviceptr, Value> entries;
    };
    std::array<Shard, kShards> shards;

    // Keys are multiples of a large power of two: the multiplication spreads them over the top bits.
    Shard &of(CUdeviceptr key) noexcept { return shards[(key >> 9) * 0x9E3779B97F4A7C15ULL >> 58]; }
};

struct Books {
    Shards<Allocation> allocations;
    Shards<std::uint32_t> granules;  // live blocks in each shared granule
};

// Made at first use and never destroyed: threads may free memory until the process is gone.
Books &books() {
    static Books &made = *new Books;
    return made;
}

void put(CUdeviceptr pointer, const Allocation &allocation) {
    auto &shard = books().allocations.of(pointer);
    const std::scoped_lock lock(shard.mutex);
    shard.entries.insert_or_assign(pointer, allocation);
}

bool shares_granules(const Allocation &allocation) noexcept {
    return allocation.kind == Kind::plain && allocation.bytes <= kLargestShared;
}

// Bytes of granules that this block opened (or, going, closed).
Bytes open(CUdeviceptr pointer, Bytes bytes) {
    Bytes taken = 0;
    for (CUdeviceptr granule = pointer / kGranule; granule <= (pointer + bytes - 1) / kGranule; ++granule) {
        auto &shard = books().granules.of(granule << 9);
        const std::scoped_lock lock(shard.mutex);
        if (++shard.entries[granule] == 1) taken += kGranule;
    }
    return taken;
}

Bytes close(CUdeviceptr pointer, Bytes bytes) noexcept {
    Bytes given = 0;
    for (CUdeviceptr granule = pointer / kGranule; granule <= (pointer + bytes - 1) / kGranule; ++granule) {
        auto &shard = books().granules.of(granule << 9);
        const std::scoped_lock lock(shard.mutex);
        const auto found = shard.entries.find(granule);
        if (found == shard.entries.end() || --found->second != 0) continue;
        shard.entries.erase(found);
        given += kGranule;
    }
    return given;
}

}  // namespace

std::optional<Bytes> add(CUdeviceptr pointer, const Allocation &allocation) noexcept try {
    put(pointer, allocation);
    if (!shares_granules(allocation)) return round_up(allocation.bytes, kGranule);
    try {
        return open(pointer, allocation.bytes);
    } catch (...) {
        forget(pointer);
        throw;
    }
} catch (...) {
    return std::nullopt;
}

std::optional<Allocation> forget(CUdeviceptr pointer) noexcept {
    auto &shard = books().allocations.of(pointer);
    const std::scoped_lock lock(shard.mutex);
    const auto found = shard.entries.find(pointer);
    if (found == shard.entries.end()) return std::nullopt;
    const Allocation allocation = found->second;
    shard.entries.erase(found);
    return allocation;
}

void remember(CUdeviceptr pointer, const Allocation &allocation) noexcept try {
    put(pointer, allocation);
} catch (...) {
    // No host memory for a record that was there a moment ago. The memory stays charged; the next look at the device's
    // own figure keeps the sum right.
}

void credit(CUdeviceptr pointer, const Allocation &allocation) noexcept {
    const Bytes freed =
        shares_granules(allocation) ? close(pointer, allocation.bytes) : round_up(allocation.bytes, kGranule);
    allocation.device->ledger.give_back(allocation.kind, freed);
}

void drop_context(CUcontext context) noexcept {
    for (auto &shard : books().allocations.shards) {
        const std::scoped_lock lock(shard.mutex);
        for (auto entry = shard.entries.begin(); entry != shard.entries.end();) {
            if (entry->second.context != context) {
                ++entry;
                continue;
            }
            credit(entry->first, entry->second);
            entry = shard.entries.erase(entry);
        }
    }
}

}  // namespace curb::shim::allocations
