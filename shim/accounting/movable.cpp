// What may be moved of virtual memory, and the blocks of cuMemAlloc that curb has made.

#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "accounting/allocations.hpp"
#include "accounting/blocks.hpp"
#include "accounting/vmm_records.hpp"

namespace curb::shim::vmm {
namespace {

// True if the memory can be read and written at this place from its own device.
bool is_usable(const Mapping &mapping) noexcept {
    const CUmemLocation &home = mapping.memory->properties.location;
    return mapping.offset == 0 && mapping.bytes == mapping.memory->bytes &&
           std::any_of(mapping.access.begin(), mapping.access.end(), [&](const CUmemAccessDesc &row) {
               return row.location.type == home.type && row.location.id == home.id &&
                      row.flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
           });
}

// Returns why the memory stays; nullopt if it may be moved, should it be mapped.
std::optional<Stays> why_it_stays(const Memory &memory) noexcept {
    if (memory.shared) return Stays::shared;
    if (memory.pinned) return Stays::pinned;
    if (!memory.is_curbs) return Stays::untracked;
    return std::nullopt;
}

// The same of a block of this process.
std::optional<Stays> why_it_stays(const BlockRecord &record) noexcept {
    if (!record.openings.empty()) return Stays::shared;
    if (record.memory->handle == 0) return Stays::untracked;
    return std::nullopt;
}

// True if other processes or a network card may access the block at `start`, as far as the program's calls tell.
bool is_shared_block(CUdeviceptr start) noexcept {
    const auto record = allocations::find(start);
    return record && record->shared;
}

// Returns all memory. May throw std::bad_alloc.
Inventory recorded() {
    Inventory all;
    const auto stays = [&](Stays why, Bytes bytes) { all.staying[static_cast<std::size_t>(why)] += bytes; };
    std::unordered_map<Memory *, Movable> found;
    const std::scoped_lock lock(registry().mutex);
    for (const auto &[handle, references] : registry().handles)
        if (references.memory) found.try_emplace(references.memory.get());
    for (const auto &[address, mapping] : registry().mappings) {
        auto &places = found[mapping.memory.get()].places;
        const auto at = is_usable(mapping) ? places.begin() : places.end();
        places.insert(at, {address, mapping.bytes, mapping.offset, mapping.access});
    }
    for (auto &[memory, movable] : found) {
        if (const auto why = why_it_stays(*memory))
            stays(*why, memory->bytes);
        else if (movable.places.empty() || !is_usable(registry().mappings.find(movable.places.front().address)->second))
            stays(Stays::unmapped, memory->bytes);
        else {
            movable.key = memory;
            movable.device = memory->device;
            movable.bytes = memory->bytes;
            movable.properties = memory->properties;
            movable.handle = memory->handle;
            all.movable.push_back(std::move(movable));
        }
    }
    for (const auto &[start, record] : registry().blocks) {
        if (record.import) continue;
        if (const auto why = why_it_stays(record)) {
            stays(*why, record.block.bytes);
            continue;
        }
        all.movable.push_back({record.memory.get(),
                               record.block.device,
                               record.block.bytes,
                               record.memory->properties,
                               record.memory->handle,
                               {{start, record.block.bytes, 0, record.access}},
                               true});
    }
    return all;
}

}  // namespace

Inventory movables() {
    forget_ended_openings();
    Inventory all = recorded();
    const auto stays = std::partition(all.movable.begin(), all.movable.end(), [](const Movable &one) {
        return !one.is_block || !is_shared_block(one.places.front().address);
    });
    for (auto one = stays; one != all.movable.end(); ++one)
        all.staying[static_cast<std::size_t>(Stays::shared)] += one->bytes;
    all.movable.erase(stays, all.movable.end());
    return all;
}

ByDevice movable_bytes() {
    forget_ended_openings();
    ByDevice out{};
    const auto add = [&](const Device &device, Bytes bytes) { out[static_cast<std::size_t>(device.ordinal)] += bytes; };
    std::vector<Block> blocks;
    {
        std::unordered_set<const Memory *> counted;  // of memory that is mapped more than once
        const std::scoped_lock lock(registry().mutex);
        for (const auto &[address, mapping] : registry().mappings) {
            const Memory &memory = *mapping.memory;
            if (!why_it_stays(memory) && is_usable(mapping) && (memory.mappings == 1 || counted.insert(&memory).second))
                add(*memory.device, memory.bytes);
        }
        blocks.reserve(registry().blocks.size());
        for (const auto &[start, record] : registry().blocks)
            if (!record.import && !why_it_stays(record)) blocks.push_back(record.block);
    }
    for (const Block &block : blocks)
        if (!is_shared_block(block.start)) add(*block.device, block.bytes);
    return out;
}

bool any_blocks() noexcept { return registry().any_blocks.load(std::memory_order_relaxed) != 0; }

bool add_block(const Block &block, Handle drivers, const CUmemAllocationProp &properties,
               const CUmemAccessDesc &access) noexcept try {
    auto memory = std::make_shared<Memory>(drivers, block.bytes, Handles::curbs);
    memory->properties = properties;
    BlockRecord record{block, memory, {access}, {}, {}, {}, {}};
    const std::scoped_lock lock(registry().mutex);
    record.block.id = ++registry().last_id;
    std::swap(registry().blocks[block.start], record);
    registry().count_blocks();
    memory->handle = drivers;
    return true;
} catch (...) {
    return false;
}

std::optional<Block> block_around(CUdeviceptr address) noexcept {
    const std::scoped_lock lock(registry().mutex);
    const BlockRecord *found = registry().block_around(address);
    return found ? std::optional(found->block) : std::nullopt;
}

bool any_block_in(CUdeviceptr address, Bytes bytes) noexcept {
    const std::scoped_lock lock(registry().mutex);
    if (registry().block_around(address)) return true;
    const auto next = registry().blocks.lower_bound(address);
    return next != registry().blocks.end() && next->first - address < bytes;
}

std::optional<Block> next_block_on(const Device &device, CUdeviceptr after) noexcept {
    const std::scoped_lock lock(registry().mutex);
    const auto &all = registry().blocks;
    const auto found = std::find_if(all.upper_bound(after), all.end(),
                                    [&](const auto &one) { return one.second.block.device == &device; });
    return found != all.end() ? std::optional(found->second.block) : std::nullopt;
}

bool block_accessible(CUdeviceptr start, const CUmemAccessDesc &access) noexcept {
    const std::scoped_lock lock(registry().mutex);
    BlockRecord *found = registry().block_at(start);
    return !found || set_access(found->access, access);
}

std::uint64_t block_id(CUdeviceptr start, BlockId which, std::uint64_t drivers) noexcept {
    const std::scoped_lock lock(registry().mutex);
    BlockRecord *found = registry().block_at(start);
    if (!found) return drivers;
    std::uint64_t &id = found->ids[static_cast<std::size_t>(which)];
    return id != 0 ? id : id = drivers;
}

void set_sync_memops(CUdeviceptr start, unsigned value) noexcept {
    const std::scoped_lock lock(registry().mutex);
    if (BlockRecord *found = registry().block_at(start)) found->sync_memops = value;
}

std::optional<unsigned> sync_memops(CUdeviceptr start) noexcept {
    const std::scoped_lock lock(registry().mutex);
    const BlockRecord *found = registry().block_at(start);
    return found ? found->sync_memops : std::nullopt;
}

BlockRemoval::BlockRemoval(CUdeviceptr start) noexcept {
    const std::scoped_lock lock(registry().mutex);
    const BlockRecord *found = registry().block_at(start);
    if (found && found->import && found->import->opens > 1)
        --found->import->opens;  // another thread has opened it meanwhile
    else
        removed_.insert(registry().blocks.extract(start));
    registry().count_blocks();
}

BlockRemoval::BlockRemoval(CUcontext context) noexcept {
    const std::scoped_lock lock(registry().mutex);
    auto &all = registry().blocks;
    const auto found =
        std::find_if(all.begin(), all.end(), [=](const auto &one) { return one.second.block.context == context; });
    if (found != all.end()) removed_.insert(all.extract(found));
    registry().count_blocks();
}

BlockRemoval::~BlockRemoval() {
    if (removed_.empty()) return;
    const std::scoped_lock lock(registry().mutex);
    registry().blocks.merge(removed_);
    registry().count_blocks();
}

// No other thread gets a reference of a block that has been taken out, so the count only falls.
Handle BlockRemoval::take_handle() noexcept {
    const Reference &memory = removed_.begin()->second.memory;
    return memory.use_count() == 1 ? std::exchange(memory->handle, 0) : 0;
}

void BlockRemoval::put_handle(Handle drivers) noexcept { removed_.begin()->second.memory->handle = drivers; }

void moved(Memory *key, Handle drivers) noexcept {
    const std::scoped_lock lock(registry().mutex);
    key->handle = drivers;
}

}  // namespace curb::shim::vmm
