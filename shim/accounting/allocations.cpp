#include "accounting/allocations.hpp"

#include <array>
#include <atomic>
#include <mutex>
#include <utility>

#include "base/lifetime.hpp"
#include "base/reusing_map.hpp"
#include "job/exports.hpp"
#include "policy/values/granule.hpp"
#include "trace/trace.hpp"

namespace curb::shim::allocations {
namespace {

constexpr std::size_t kShards = 64;

// Neighbours in the device's memory are neighbours in the table: a program that allocates one block after the other
// finds what it needs in the processor's caches, beside a million blocks too. The driver places blocks at multiples of
// 512 bytes.
struct ByPlace {
    std::size_t operator()(CUdeviceptr pointer) const noexcept { return pointer >> 9; }
};

template <class Value>
struct Shards {
    struct alignas(64) Shard {  // a cache line each: neighbours are locked by different threads
        std::mutex mutex;
        ReusingMap<CUdeviceptr, Value, ByPlace> entries;
        // entries.size(). A thread that looks up a pointer got it from the thread that added it, so it sees a count of
        // at least 1. If it sees 0, the pointer is not here (it is a pool's), and we skip the lock.
        std::atomic<std::size_t> count{0};

        void counted() noexcept { count.store(entries.size(), std::memory_order_relaxed); }
        [[nodiscard]] bool empty() const noexcept { return count.load(std::memory_order_relaxed) == 0; }
    };
    std::array<Shard, kShards> shards;

    // Regions of 32 MiB. The multiplication spreads them over the top bits.
    Shard &of(CUdeviceptr key) noexcept { return shards[(key >> 25) * 0x9E3779B97F4A7C15ULL >> 58]; }
};

// A granule of device memory that small blocks share.
struct Granule {
    std::uint32_t blocks = 0;  // in it
    std::uint32_t kept = 0;    // of these, kept for reuse

    // True if freeing its kept blocks would return the granule to the device.
    [[nodiscard]] bool idle() const noexcept { return blocks != 0 && kept == blocks; }
};

struct Registry {
    Shards<Allocation> allocations;
    Shards<Granule> granules;
};

Registry &registry() noexcept { return leaked<Registry>(); }

// Stores the record and returns the former one of this pointer.
std::optional<Allocation> put(CUdeviceptr pointer, const Allocation &allocation) {
    auto &shard = registry().allocations.of(pointer);
    const std::scoped_lock lock(shard.mutex);
    const auto [entry, added] = shard.entries.try_emplace(pointer, allocation);
    shard.counted();
    if (added) return std::nullopt;
    return std::exchange(entry->second, allocation);
}

bool shares_granules(const Allocation &allocation) noexcept {
    return allocation.kind == Kind::plain && allocation.bytes <= policy::kLargestShared;
}

void set_cached(Device &device, bool was_idle, bool is_idle, Bytes bytes) noexcept {
    if (is_idle && !was_idle) device.cached.fetch_add(bytes, std::memory_order_acq_rel);
    if (was_idle && !is_idle) device.cached.fetch_sub(bytes, std::memory_order_acq_rel);
}

// The first and the last granule of a block: the same one, or two neighbours.
CUdeviceptr first_granule(CUdeviceptr pointer) noexcept { return pointer / policy::kGranule; }
CUdeviceptr last_granule(CUdeviceptr pointer, const Allocation &allocation) noexcept {
    return (pointer + allocation.bytes - 1) / policy::kGranule;
}

// Changes a granule and erases it if it has no blocks left. Returns its size if this made it used or unused, else 0.
template <class Change>
Bytes change_granule(CUdeviceptr index, Device &device, Change change) {
    const CUdeviceptr start = index * policy::kGranule;
    auto &shard = registry().granules.of(start);
    const std::scoped_lock lock(shard.mutex);
    const auto entry = shard.entries.try_emplace(start, {}).first;
    Granule &granule = entry->second;
    const bool was_there = granule.blocks != 0, was_idle = granule.idle();
    change(granule);
    set_cached(device, was_idle, granule.idle(), policy::kGranule);
    const bool is_there = granule.blocks != 0;
    if (!is_there) shard.entries.erase(entry);
    return was_there != is_there ? policy::kGranule : 0;
}

// The same for each granule of a block. They exist already unless `change` adds the block.
template <class Change>
Bytes change_granules(CUdeviceptr pointer, const Allocation &allocation, Change change) {
    Bytes changed = 0;
    for (CUdeviceptr index = first_granule(pointer); index <= last_granule(pointer, allocation); ++index)
        changed += change_granule(index, *allocation.device, change);
    return changed;
}

void leave(Granule &granule) noexcept {
    if (granule.blocks != 0) --granule.blocks;
}

// May throw std::bad_alloc; then nothing has changed.
Bytes open(CUdeviceptr pointer, const Allocation &allocation) {
    const auto enter = [](Granule &granule) { ++granule.blocks; };
    const CUdeviceptr first = first_granule(pointer), last = last_granule(pointer, allocation);
    const Bytes opened = change_granule(first, *allocation.device, enter);
    try {
        return last == first ? opened : opened + change_granule(last, *allocation.device, enter);
    } catch (...) {
        change_granule(first, *allocation.device, leave);
        throw;
    }
}

Bytes close(CUdeviceptr pointer, const Allocation &allocation) noexcept {
    return change_granules(pointer, allocation, leave);
}

// Credits memory that was freed with its context.
void credit_with_context(CUdeviceptr pointer, const Allocation &allocation) noexcept {
    const Bytes freed = credit(pointer, allocation);
    trace::freed(*allocation.device, allocation.kind, pointer, allocation.bytes, freed, trace::moment());
}

}  // namespace

std::optional<Bytes> add(CUdeviceptr pointer, const Allocation &allocation) noexcept try {
    // The driver reused the address, so the old memory ended with its context, which another thread is destroying now.
    if (const auto gone = put(pointer, allocation)) credit_with_context(pointer, *gone);
    if (!shares_granules(allocation)) return policy::round_up(allocation.bytes, policy::kGranule);
    try {
        return open(pointer, allocation);
    } catch (...) {
        forget(pointer);
        throw;
    }
} catch (...) {
    return std::nullopt;
}

std::optional<Allocation> find(CUdeviceptr pointer) noexcept {
    auto &shard = registry().allocations.of(pointer);
    if (shard.empty()) return std::nullopt;
    const std::scoped_lock lock(shard.mutex);
    const auto found = shard.entries.find(pointer);
    return found == shard.entries.end() ? std::nullopt : std::optional(found->second);
}

std::optional<Allocation> forget(CUdeviceptr pointer) noexcept {
    auto &shard = registry().allocations.of(pointer);
    if (shard.empty()) return std::nullopt;
    const std::scoped_lock lock(shard.mutex);
    const auto found = shard.entries.find(pointer);
    if (found == shard.entries.end()) return std::nullopt;
    const Allocation allocation = found->second;
    shard.entries.erase(found);
    shard.counted();
    return allocation;
}

void share(CUdeviceptr pointer, bool exports) noexcept {
    auto &shard = registry().allocations.of(pointer);
    const std::scoped_lock lock(shard.mutex);
    const auto found = shard.entries.find(pointer);
    if (found == shard.entries.end()) return;
    found->second.shared = true;
    found->second.exported |= exports;
}

bool any_exported() noexcept {
    for (auto &shard : registry().allocations.shards) {
        const std::scoped_lock lock(shard.mutex);
        for (const auto &[pointer, allocation] : shard.entries)
            if (allocation.exported) return true;
    }
    return false;
}

void keep(CUdeviceptr pointer, const Allocation &allocation) noexcept {
    if (shares_granules(allocation))
        change_granules(pointer, allocation, [](Granule &granule) { ++granule.kept; });
    else
        set_cached(*allocation.device, false, true, policy::round_up(allocation.bytes, policy::kGranule));
}

void use_again(CUdeviceptr pointer, const Allocation &allocation) noexcept {
    if (shares_granules(allocation))
        change_granules(pointer, allocation, [](Granule &granule) { --granule.kept; });
    else
        set_cached(*allocation.device, true, false, policy::round_up(allocation.bytes, policy::kGranule));
}

bool remember(CUdeviceptr pointer, const Allocation &allocation) noexcept try {
    put(pointer, allocation);
    return true;
} catch (...) {
    // The memory of the failed free stays charged, and the next reconcile keeps the sum correct.
    return false;
}

Bytes credit(CUdeviceptr pointer, const Allocation &allocation, Returned returned) noexcept {
    if (allocation.exported) job::freed(pointer);
    const Bytes freed =
        shares_granules(allocation) ? close(pointer, allocation) : policy::round_up(allocation.bytes, policy::kGranule);
    Ledger &ledger = allocation.device->ledger;
    if (returned == Returned::at_sync) ledger.returned_at_sync.add(freed, ledger.share);
    if (returned == Returned::when_measured)
        ledger.leave_to_overhead(allocation.kind, freed);
    else
        ledger.credit(allocation.kind, freed);
    return freed;
}

void drop_context(CUcontext context) noexcept {
    for (auto &shard : registry().allocations.shards) {
        const std::scoped_lock lock(shard.mutex);
        for (auto entry = shard.entries.begin(); entry != shard.entries.end();) {
            if (entry->second.context != context) {
                ++entry;
                continue;
            }
            credit_with_context(entry->first, entry->second);
            entry = shard.entries.erase(entry);
        }
        shard.counted();
    }
}

}  // namespace curb::shim::allocations
