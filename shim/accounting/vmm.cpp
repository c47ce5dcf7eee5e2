#include "accounting/vmm.hpp"

#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "accounting/reconcile.hpp"
#include "base/lifetime.hpp"
#include "job/exports.hpp"
#include "trace/trace.hpp"

namespace curb::shim::vmm {

struct Memory : NoCopy {
    Memory(CUmemGenericAllocationHandle first, Bytes size) noexcept : handle(first), bytes(size) {}
    ~Memory() {
        if (!device) {
            if (imported_on) end_import(key());
            return;
        }
        if (shared) job::freed(key());
        device->ledger.credit(Kind::vmm, bytes);
        trace::freed(*device, Kind::vmm, handle, bytes, bytes, trace::moment());
    }
    // The driver may reuse the handle while a mapping keeps the memory.
    [[nodiscard]] job::MemoryKey key() const noexcept { return reinterpret_cast<job::MemoryKey>(this); }

    Device *device = nullptr;
    CUmemGenericAllocationHandle handle;  // from its creation
    Bytes bytes;                          // of imported memory: 0 until it is mapped
    Device *imported_on = nullptr;        // the device of memory of another process
    bool shared = false;                  // with another process; under the lock, as `bytes` of imported memory
};

namespace {

struct Handle {
    Reference memory;
    unsigned references = 0;
};

// Under the lock no holder is destroyed: the last one credits the device.
struct Registry {
    std::mutex mutex;
    std::unordered_map<CUmemGenericAllocationHandle, Handle> handles;
    Mappings mappings;
};

Registry &registry() noexcept { return leaked<Registry>(); }

// Returns the handle's memory; null if it is unknown. The caller holds the lock.
Reference memory_of(CUmemGenericAllocationHandle handle) noexcept {
    const auto found = registry().handles.find(handle);
    return found == registry().handles.end() ? nullptr : found->second.memory;
}

}  // namespace

bool created(CUmemGenericAllocationHandle handle, Device &device, Bytes bytes) noexcept try {
    auto memory = std::make_shared<Memory>(handle, bytes);
    Handle former;  // of a handle that the driver reused without curb's knowledge
    const std::scoped_lock lock(registry().mutex);
    former = std::exchange(registry().handles[handle], {memory, 1});
    memory->device = &device;  // last: from here on the destructor credits the device
    return true;
} catch (...) {
    return false;
}

void imported(CUmemGenericAllocationHandle handle, Device *device) noexcept try {
    const std::scoped_lock lock(registry().mutex);
    Handle &record = registry().handles[handle];
    ++record.references;
    if (record.memory) return;
    record.memory = std::make_shared<Memory>(handle, 0);  // the process that made it is charged
    record.memory->shared = true;
    record.memory->imported_on = device;
} catch (...) {
    // Releasing a handle without a record credits nothing.
}

void exported(CUmemGenericAllocationHandle handle) noexcept {
    Reference memory;
    {
        const std::scoped_lock lock(registry().mutex);
        memory = memory_of(handle);
        if (!memory) return;
        memory->shared = true;
    }
    if (memory->device) job::exported(memory->key(), 0, memory->device->ledger.share.row(), memory->bytes);
}

bool any_shared() noexcept {
    const std::scoped_lock lock(registry().mutex);
    const auto is_shared = [](const auto &one) { return one.second.memory && one.second.memory->shared; };
    const auto &[mutex, handles, mappings] = registry();
    return std::any_of(handles.begin(), handles.end(), is_shared) ||
           std::any_of(mappings.begin(), mappings.end(), is_shared);
}

void retained(CUmemGenericAllocationHandle handle, CUdeviceptr address) noexcept try {
    Reference former;
    const std::scoped_lock lock(registry().mutex);
    auto mapping = registry().mappings.upper_bound(address);
    if (mapping == registry().mappings.begin()) return;
    --mapping;
    if (address - mapping->first >= mapping->second.bytes) return;  // host memory, or another process's
    Handle &record = registry().handles[handle];
    former = std::exchange(record.memory, mapping->second.memory);
    ++record.references;
} catch (...) {
    // Without this record the memory is credited with its other holders, although the driver keeps it. The next
    // reconcile corrects the ledger.
}

bool mapped(CUdeviceptr address, std::size_t bytes, CUmemGenericAllocationHandle handle) noexcept try {
    Mapping former;
    Reference sized;  // imported memory whose size this call is the first to show; a program maps the whole
    {
        const std::scoped_lock lock(registry().mutex);
        const Reference memory = memory_of(handle);
        if (!memory) return true;
        former = std::exchange(registry().mappings[address], {memory, bytes});
        if (memory->imported_on && memory->bytes == 0) {
            memory->bytes = bytes;
            sized = memory;
        }
    }
    if (sized) job::imported_of_size(sized->key(), sized->imported_on->ledger.share.row(), bytes);
    return true;
} catch (...) {
    return false;
}

Release::Release(CUmemGenericAllocationHandle handle) noexcept : handle_(handle) {
    const std::scoped_lock lock(registry().mutex);
    const auto found = registry().handles.find(handle);
    if (found == registry().handles.end()) return;
    reference_ = found->second.memory;
    if (--found->second.references == 0) registry().handles.erase(found);
}

Release::~Release() {
    if (reference_) try {
            const std::scoped_lock lock(registry().mutex);
            Handle &record = registry().handles[handle_];
            if (!record.memory) record.memory = reference_;
            // If the driver has reused the handle, it did release this reference.
            if (record.memory == reference_) ++record.references;
        } catch (...) {
            // As in retained().
        }
}

Ledger *Release::ledger() const noexcept {
    return reference_ && reference_->device ? &reference_->device->ledger : nullptr;
}

Unmapping::Unmapping(CUdeviceptr address, std::size_t bytes) noexcept {
    {
        const std::scoped_lock lock(registry().mutex);
        auto &all = registry().mappings;
        for (auto one = all.lower_bound(address); one != all.end() && one->first < address + bytes;)
            removed_.insert(removed_.end(), all.extract(one++));
    }
    for (const auto &[first, mapping] : removed_) {
        Device *device = mapping.memory->device;
        if (!device || devices_[static_cast<std::size_t>(device->ordinal)]) continue;
        devices_.set(static_cast<std::size_t>(device->ordinal));
        device->ledger.begin();
    }
}

Unmapping::~Unmapping() {
    for (Device &device : devices::all())
        if (devices_[static_cast<std::size_t>(device.ordinal)]) device.ledger.end();
    if (removed_.empty()) return;
    const std::scoped_lock lock(registry().mutex);
    registry().mappings.merge(removed_);
}

}  // namespace curb::shim::vmm
