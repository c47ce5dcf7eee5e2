#include "accounting/vmm.hpp"

#include <algorithm>
#include <mutex>
#include <utility>

#include "accounting/vmm_records.hpp"

namespace curb::shim::vmm {
namespace {

// Calls `note(memory)` under the lock with the memory that is mapped around `address`, if there is any.
template <class Note>
void note_around(CUdeviceptr address, Note note) noexcept {
    const std::scoped_lock lock(registry().mutex);
    if (const Mapping *mapping = registry().mapping_around(address)) note(mapping->memory);
}

// Records that other processes may access the memory. The caller does not hold the lock.
void announce(const Reference &memory) noexcept {
    if (memory && memory->device) job::exported(memory->key(), 0, memory->device->ledger.share.row(), memory->bytes);
}

}  // namespace

std::optional<Handle> created(Handle drivers, Device &device, Bytes bytes, const CUmemAllocationProp &properties,
                              Handles handles) noexcept try {
    auto memory = std::make_shared<Memory>(drivers, bytes, handles);
    memory->properties = properties;
    References former;  // of a handle that the driver reused without curb's knowledge
    const std::scoped_lock lock(registry().mutex);
    former = std::exchange(registry().handles[memory->programs()], {memory, 1});
    if (memory->is_curbs) memory->handle = drivers;
    memory->device = &device;  // last: from here on the destructor credits the device
    return memory->programs();
} catch (...) {
    return std::nullopt;
}

Handle imported(Handle drivers, Device *device, Handles handles) noexcept try {
    const auto made = std::make_shared<Memory>(drivers, 0, handles);  // the process that made it is charged
    made->shared = true;
    Reference known;
    {
        const std::scoped_lock lock(registry().mutex);
        known = handles == Handles::curbs ? registry().behind(drivers) : registry().memory_of(drivers);
        const Reference &memory = known ? known : made;
        registry().add_reference(memory, memory->programs());
        if (!known) {
            made->imported_on = device;
            if (made->is_curbs) made->handle = drivers;
        }
    }
    if (!known) return made->programs();
    if (known->is_curbs) driver_behind_gate().cuMemRelease(drivers);  // curb has a reference already
    return known->programs();
} catch (...) {
    return drivers;  // releasing a handle without a record credits nothing
}

void exported(Handle handle) noexcept {
    Reference memory;
    {
        const std::scoped_lock lock(registry().mutex);
        memory = registry().memory_of(handle);
        if (memory) memory->shared = true;
    }
    announce(memory);
}

bool any_shared() noexcept {
    const std::scoped_lock lock(registry().mutex);
    const auto is_shared = [](const auto &one) { return one.second.memory && one.second.memory->shared; };
    const auto &handles = registry().handles;
    const auto &mappings = registry().mappings;
    return std::any_of(handles.begin(), handles.end(), is_shared) ||
           std::any_of(mappings.begin(), mappings.end(), is_shared);
}

void retained(Handle drivers, CUdeviceptr address) noexcept try {
    Reference former;
    const std::scoped_lock lock(registry().mutex);
    const Mapping *mapping = registry().mapping_around(address);
    if (!mapping) return;
    References &record = registry().handles[drivers];
    former = std::exchange(record.memory, mapping->memory);
    ++record.count;
} catch (...) {
    // Without this record the memory is credited with its other holders, although the driver keeps it. The next
    // reconcile corrects the ledger.
}

std::optional<Handle> retain(CUdeviceptr address) noexcept try {
    const std::scoped_lock lock(registry().mutex);
    const Mapping *mapping = registry().mapping_around(address);
    if (!mapping || !mapping->memory->is_curbs) return std::nullopt;
    const Handle handle = mapping->memory->programs();
    registry().add_reference(mapping->memory, handle);
    return handle;
} catch (...) {
    return std::nullopt;
}

Named::Named(Handle handle) noexcept : drivers_(handle) {
    const std::scoped_lock lock(registry().mutex);
    memory_ = registry().memory_of(handle);
    if (memory_ && memory_->is_curbs) drivers_ = memory_->handle;
}

void Named::pin() const noexcept {
    if (!memory_) return;
    const std::scoped_lock lock(registry().mutex);
    memory_->pinned = true;
}

void pin_at(CUdeviceptr address) noexcept {
    note_around(address, [](const Reference &memory) { memory->pinned = true; });
}

bool mapped(CUdeviceptr address, Bytes bytes, Bytes offset, const Named &named) noexcept try {
    const Reference &memory = named.memory_;
    if (!memory) return true;
    Mapping former;
    bool is_sized = false;  // imported memory whose size this call is the first to show; a program maps the whole
    {
        const std::scoped_lock lock(registry().mutex);
        former = std::exchange(registry().mappings[address], {memory, bytes, offset, {}});
        ++memory->mappings;
        if (former.memory) --former.memory->mappings;
        is_sized = memory->imported_on && memory->bytes == 0;
        if (is_sized) memory->bytes = bytes;
    }
    if (is_sized) job::imported_of_size(memory->key(), memory->imported_on->ledger.share.row(), bytes);
    return true;
} catch (...) {
    return false;
}

void accessible(CUdeviceptr address, Bytes bytes, std::span<const CUmemAccessDesc> access) noexcept {
    const std::scoped_lock lock(registry().mutex);
    auto &all = registry().mappings;
    for (auto one = all.lower_bound(address); one != all.end() && one->first < address + bytes; ++one)
        for (const CUmemAccessDesc &row : access)
            if (!set_access(one->second.access, row))
                one->second.memory->pinned = true;  // curb does not know how to map it again
}

Release::Release(Handle handle) noexcept : handle_(handle), drivers_(handle) {
    const std::scoped_lock lock(registry().mutex);
    const auto found = registry().handles.find(handle);
    if (found == registry().handles.end()) return;
    reference_ = found->second.memory;
    const bool is_last = --found->second.count == 0;
    if (is_last) registry().handles.erase(found);
    if (!reference_->is_curbs) return;
    drivers_.reset();
    if (is_last && reference_->mappings == 0 && reference_->handle != 0)
        drivers_ = std::exchange(reference_->handle, 0);
}

Release::~Release() {
    if (reference_) try {
            const std::scoped_lock lock(registry().mutex);
            References &record = registry().handles[handle_];
            if (!record.memory) record.memory = reference_;
            // If the driver has reused the handle, it did release this reference.
            if (record.memory == reference_) ++record.count;
            if (reference_->is_curbs && drivers_) reference_->handle = *drivers_;
        } catch (...) {
            // As in retained().
        }
}

Ledger *Release::ledger() const noexcept {
    return reference_ && reference_->device ? &reference_->device->ledger : nullptr;
}

Unmapping::Unmapping(CUdeviceptr address, Bytes bytes) noexcept {
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

void Unmapping::commit() noexcept {
    {
        const std::scoped_lock lock(registry().mutex);
        for (const auto &[first, mapping] : removed_) --mapping.memory->mappings;
    }
    removed_.clear();
}

Unmapping::~Unmapping() {
    for (Device &device : devices::all())
        if (devices_[static_cast<std::size_t>(device.ordinal)]) device.ledger.end();
    if (removed_.empty()) return;
    const std::scoped_lock lock(registry().mutex);
    registry().mappings.merge(removed_);
    for (const auto &[first, mapping] : removed_) --mapping.memory->mappings;  // of addresses that the driver reused
}

}  // namespace curb::shim::vmm
