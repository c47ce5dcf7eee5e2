#include "accounting/vmm.hpp"

#include <algorithm>
#include <mutex>
#include <unordered_map>

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
    bool shared = false;                  // with another process; under the lock
};

namespace {

struct Handle {
    std::shared_ptr<Memory> memory;
    unsigned references = 0;
};

struct Registry {
    std::mutex mutex;
    std::unordered_map<CUmemGenericAllocationHandle, Handle> handles;
    Mappings mappings;
};

Registry &registry() noexcept { return leaked<Registry>(); }

}  // namespace

bool created(CUmemGenericAllocationHandle handle, Device &device, Bytes bytes) noexcept try {
    auto memory = std::make_shared<Memory>(handle, bytes);
    const std::scoped_lock lock(registry().mutex);
    registry().handles[handle] = {memory, 1};
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
    const std::scoped_lock lock(registry().mutex);
    const auto found = registry().handles.find(handle);
    if (found == registry().handles.end() || !found->second.memory) return;
    Memory &memory = *found->second.memory;
    memory.shared = true;
    if (memory.device) job::exported(memory.key(), 0, memory.device->ledger.share.row(), memory.bytes);
}

bool any_shared() noexcept {
    const std::scoped_lock lock(registry().mutex);
    const auto is_shared = [](const std::shared_ptr<Memory> &memory) { return memory && memory->shared; };
    return std::any_of(registry().handles.begin(), registry().handles.end(),
                       [&](const auto &one) { return is_shared(one.second.memory); }) ||
           std::any_of(registry().mappings.begin(), registry().mappings.end(),
                       [&](const auto &one) { return is_shared(one.second.memory); });
}

void retained(CUmemGenericAllocationHandle handle, CUdeviceptr address) noexcept try {
    const std::scoped_lock lock(registry().mutex);
    auto mapping = registry().mappings.upper_bound(address);
    if (mapping == registry().mappings.begin()) return;
    --mapping;
    if (address - mapping->first >= mapping->second.bytes) return;  // host memory, or another process's
    Handle &record = registry().handles[handle];
    record.memory = mapping->second.memory;
    ++record.references;
} catch (...) {
    // Without this record the memory is credited with its other holders, although the driver keeps it. The next
    // reconcile corrects the ledger.
}

bool mapped(CUdeviceptr address, std::size_t bytes, CUmemGenericAllocationHandle handle) noexcept try {
    const std::scoped_lock lock(registry().mutex);
    const auto found = registry().handles.find(handle);
    if (found == registry().handles.end()) return true;
    registry().mappings[address] = {found->second.memory, bytes};
    Memory *const memory = found->second.memory.get();
    if (memory && memory->imported_on && memory->bytes == 0) {
        memory->bytes = bytes;  // the first call that shows it; a program maps the whole
        job::imported_of_size(memory->key(), memory->imported_on->ledger.share.row(), bytes);
    }
    return true;
} catch (...) {
    return false;
}

Reference take_reference(CUmemGenericAllocationHandle handle) noexcept {
    const std::scoped_lock lock(registry().mutex);
    const auto found = registry().handles.find(handle);
    if (found == registry().handles.end()) return nullptr;
    if (found->second.references > 1) {
        --found->second.references;
        return found->second.memory;
    }
    Reference last = std::move(found->second.memory);
    registry().handles.erase(found);
    return last;
}

void put_back(CUmemGenericAllocationHandle handle, Reference reference) noexcept try {
    if (!reference) return;
    const std::scoped_lock lock(registry().mutex);
    Handle &record = registry().handles[handle];
    record.memory = std::move(reference);
    ++record.references;
} catch (...) {
    // As in retained().
}

Mappings take_mappings(CUdeviceptr address, std::size_t bytes) noexcept {
    Mappings taken;
    const std::scoped_lock lock(registry().mutex);
    auto &all = registry().mappings;
    for (auto one = all.lower_bound(address); one != all.end() && one->first < address + bytes;)
        taken.insert(taken.end(), all.extract(one++));
    return taken;
}

void put_back(Mappings mappings) noexcept {
    const std::scoped_lock lock(registry().mutex);
    registry().mappings.merge(mappings);
}

Device *device_of(const std::shared_ptr<Memory> &memory) noexcept { return memory ? memory->device : nullptr; }

}  // namespace curb::shim::vmm
