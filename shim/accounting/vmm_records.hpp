// The records of virtual memory management, for the sources of this folder.
#pragma once

#include <algorithm>
#include <atomic>
#include <mutex>
#include <unordered_map>

#include "accounting/blocks.hpp"
#include "accounting/reconcile.hpp"
#include "accounting/vmm.hpp"
#include "base/lifetime.hpp"
#include "job/exports.hpp"
#include "trace/trace.hpp"

namespace curb::shim::vmm {

struct Memory : NoCopy {
    Memory(Handle first, Bytes size, Handles whose) noexcept
        : created(first), bytes(size), is_curbs(whose == Handles::curbs) {}
    ~Memory() {
        // An error would be of earlier work. If the driver keeps the memory, the next reconcile corrects the ledger.
        if (handle != 0) driver_behind_gate().cuMemRelease(handle);
        if (!device) {
            if (imported_on) end_import(key());
            return;
        }
        if (shared) job::freed(key());
        device->ledger.credit(Kind::vmm, bytes);
        trace::freed(*device, Kind::vmm, created, bytes, bytes, trace::moment());
    }
    // The driver may reuse the handle while a mapping keeps the memory.
    [[nodiscard]] job::MemoryKey key() const noexcept { return reinterpret_cast<job::MemoryKey>(this); }
    [[nodiscard]] Handle programs() const noexcept { return is_curbs ? reinterpret_cast<Handle>(this) : created; }

    Device *device = nullptr;
    const Handle created;  // the driver's, from its creation
    Bytes bytes;           // of imported memory: 0 until it is mapped
    const bool is_curbs;   // the program's handle; curb has the driver's only reference
    CUmemAllocationProp properties{};
    Device *imported_on = nullptr;  // the device of memory of another process
    // Under the lock, as `bytes` of imported memory:
    Handle handle = 0;      // if the program's is curb's: the driver's now; 0 once the memory is out or released
    unsigned mappings = 0;  // if the program's handle is curb's
    bool shared = false;    // with another process
    bool pinned = false;    // a network card, an array or a multicast object may use it
};

// Records the access of one location. False if host memory is exhausted.
inline bool set_access(std::vector<CUmemAccessDesc> &known, const CUmemAccessDesc &access) noexcept try {
    const auto same = std::find_if(known.begin(), known.end(), [&](const CUmemAccessDesc &row) {
        return row.location.type == access.location.type && row.location.id == access.location.id;
    });
    if (same != known.end())
        same->flags = access.flags;
    else
        known.push_back(access);
    return true;
} catch (...) {
    return false;
}

struct References {
    Reference memory;
    unsigned count = 0;
};

// Under the lock no holder is destroyed: the last one credits the device.
struct Registry {
    std::mutex mutex;
    std::unordered_map<Handle, References> handles;  // the program's
    Mappings mappings;
    BlockRecords blocks;
    std::uint64_t last_id = 0, last_opening = 0;
    std::atomic<std::size_t> any_blocks{0};  // a copy of blocks.size(): queries of any pointer read it without the lock

    // The caller of the rest holds the lock.
    // Returns the handle's memory; null if it is unknown.
    [[nodiscard]] Reference memory_of(Handle handle) const noexcept {
        const auto found = handles.find(handle);
        return found == handles.end() ? nullptr : found->second.memory;
    }
    // Returns the mapping around this address; null for host memory and another process's.
    [[nodiscard]] const Mapping *mapping_around(CUdeviceptr address) const noexcept {
        auto mapping = mappings.upper_bound(address);
        if (mapping == mappings.begin()) return nullptr;
        --mapping;
        return address - mapping->first < mapping->second.bytes ? &mapping->second : nullptr;
    }
    // Returns the block around this address; null if there is none.
    [[nodiscard]] BlockRecord *block_around(CUdeviceptr address) noexcept {
        auto block = blocks.upper_bound(address);
        if (block == blocks.begin()) return nullptr;
        --block;
        return address - block->first < block->second.block.bytes ? &block->second : nullptr;
    }
    // Returns the block that starts there; null if there is none.
    [[nodiscard]] BlockRecord *block_at(CUdeviceptr start) noexcept {
        const auto found = blocks.find(start);
        return found == blocks.end() ? nullptr : &found->second;
    }
    // Counts an open of another process's block that is open in this context, and returns its address; 0 if it is not.
    [[nodiscard]] CUdeviceptr count_open(const ImportName &name, CUcontext context) noexcept {
        for (auto &[start, record] : blocks) {
            if (!record.import || record.import->name != name || record.block.context != context) continue;
            ++record.import->opens;
            return start;
        }
        return 0;
    }
    void count_blocks() noexcept { any_blocks.store(blocks.size(), std::memory_order_relaxed); }
    // Returns the memory that has this handle of the driver's, and a handle of curb's; null if there is none.
    [[nodiscard]] Reference behind(Handle drivers) const noexcept {
        for (const auto &[handle, references] : handles)
            if (references.memory && references.memory->handle == drivers) return references.memory;
        for (const auto &[address, mapping] : mappings)
            if (mapping.memory->handle == drivers) return mapping.memory;
        return nullptr;
    }
    // May throw std::bad_alloc; then nothing has changed.
    void add_reference(const Reference &memory, Handle handle) {
        References &record = handles[handle];
        if (!record.memory) record.memory = memory;
        ++record.count;
    }
};

inline Registry &registry() noexcept { return leaked<Registry>(); }

}  // namespace curb::shim::vmm
