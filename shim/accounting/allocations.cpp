#include "accounting/allocations.hpp"

#include <algorithm>
#include <array>
#include <atomic>

#include "base/lifetime.hpp"
#include "job/exports.hpp"
#include "policy/values/granule.hpp"
#include "trace/trace.hpp"

namespace curb::shim::allocations {
namespace {

// A table for the blocks of each 64th region of 32 MiB. A free of a pool's memory usually finds an empty table, and so
// takes no lock.
struct alignas(64) Region : Blocks {};  // a cache line each: neighbours are locked by different threads
using Regions = std::array<Region, 64>;

Regions &regions() noexcept { return leaked<Regions>(); }

// The multiplication spreads the regions over the top bits.
Region &region_of(CUdeviceptr pointer) noexcept { return regions()[(pointer >> 25) * 0x9E3779B97F4A7C15ULL >> 58]; }

// A granule of device memory that small blocks share.
struct Granule {
    std::uint32_t blocks = 0;  // in it
    std::uint32_t kept = 0;    // of these, kept for reuse

    // True if freeing its kept blocks would return the granule to the device.
    [[nodiscard]] bool idle() const noexcept { return blocks != 0 && kept == blocks; }
};
using Granules = Table<CUdeviceptr, Granule>;

Granules &granules() noexcept { return leaked<Granules>(); }

bool shares_granules(const Allocation &allocation) noexcept {
    return allocation.kind == Kind::plain && allocation.bytes <= policy::kLargestShared;
}

void set_cached(Device &device, bool was_idle, bool is_idle, Bytes bytes) noexcept {
    if (is_idle && !was_idle) device.kept.bytes += bytes;
    if (was_idle && !is_idle) device.kept.bytes -= bytes;
}

// The first and the last granule of a block: the same one, or two neighbours.
CUdeviceptr first_granule(CUdeviceptr pointer) noexcept { return pointer / policy::kGranule; }
CUdeviceptr last_granule(CUdeviceptr pointer, const Allocation &allocation) noexcept {
    return (pointer + allocation.bytes - 1) / policy::kGranule;
}

// Changes a granule and erases it if it has no blocks left. Returns its size if this made it used or unused, else 0.
template <class Change>
Bytes change_granule(CUdeviceptr index, Device &device, Change change) {
    bool was_there = false, is_there = false;
    granules().make_and_change(index, [&](Granule &granule) {
        const bool was_idle = granule.idle();
        was_there = granule.blocks != 0;
        change(granule);
        is_there = granule.blocks != 0;
        set_cached(device, was_idle, granule.idle(), policy::kGranule);  // under the lock, so that it is never below 0
        return is_there;
    });
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
void credit_with_context(CUdeviceptr pointer, const Allocation &allocation, std::uint64_t moment) noexcept {
    const Bytes freed = credit(pointer, allocation);
    trace::freed(*allocation.device, allocation.kind, pointer, allocation.bytes, freed, moment);
}

}  // namespace

std::optional<Bytes> add(CUdeviceptr pointer, const Allocation &allocation) noexcept try {
    // The driver reused the address, so the old memory ended with its context, which another thread is destroying now.
    if (const auto gone = region_of(pointer).put(pointer, allocation))
        credit_with_context(pointer, *gone, trace::moment());
    if (!shares_granules(allocation)) return policy::round_up(allocation.bytes, policy::kGranule);
    try {
        return open(pointer, allocation);
    } catch (...) {
        region_of(pointer).take(pointer);
        throw;
    }
} catch (...) {
    return std::nullopt;
}

std::optional<Allocation> find(CUdeviceptr pointer) noexcept { return region_of(pointer).find(pointer); }

Removal remove(CUdeviceptr pointer) noexcept { return region_of(pointer).remove(pointer); }

void share(CUdeviceptr pointer, bool exports) noexcept {
    region_of(pointer).change(pointer, [=](Allocation &allocation) {
        allocation.shared = true;
        allocation.exported |= exports;
        return true;
    });
}

bool offer(CUdeviceptr pointer) noexcept {
    bool is_known = false;
    region_of(pointer).change(pointer, [&](Allocation &allocation) { return is_known = allocation.offered = true; });
    return is_known;
}

bool any_exported() noexcept {
    const auto is_exported = [](const Allocation &allocation) { return allocation.exported; };
    return std::any_of(regions().begin(), regions().end(), [=](Region &region) { return region.any_of(is_exported); });
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
    region_of(pointer).put(pointer, allocation);
    return true;
} catch (...) {
    return false;  // the memory stays charged, and the next reconcile keeps the sum correct
}

Bytes credit(CUdeviceptr pointer, const Allocation &allocation, Returned returned) noexcept {
    if (allocation.exported || allocation.offered) job::freed(pointer);
    const Bytes freed =
        shares_granules(allocation) ? close(pointer, allocation) : policy::round_up(allocation.bytes, policy::kGranule);
    Ledger &ledger = allocation.device->ledger;
    if (returned == Returned::at_sync) ledger.add_returned_at_sync(freed);
    if (returned == Returned::when_measured)
        ledger.leave_to_overhead(allocation.kind, freed);
    else
        ledger.credit(allocation.kind, freed);
    return freed;
}

void drop_context(CUcontext context) noexcept {
    const std::uint64_t moment = trace::moment();
    for (Region &region : regions())
        region.take_all([=](const Allocation &allocation) { return allocation.context == context; },
                        [=](CUdeviceptr pointer, const Allocation &allocation) {
                            credit_with_context(pointer, allocation, moment);
                        });
}

}  // namespace curb::shim::allocations
