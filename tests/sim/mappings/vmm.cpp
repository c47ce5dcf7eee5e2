#include "vmm.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <iterator>

#include "driver.hpp"
#include "sharing.hpp"

namespace curb::sim {

namespace {

// Gives an allocation a place in the shared file, which grows as needed.
bool place_in_shared_file(VmmAllocation &allocation) {
    VmmBooks &books = driver().vmm_books;
    if (books.shared_file < 0) books.shared_file = ::memfd_create("curb-sim-vmm", MFD_CLOEXEC);
    if (books.shared_file < 0) return false;
    allocation.file = books.shared_file;
    if (const auto hole = books.shared_free.find(allocation.size); hole != books.shared_free.end()) {
        allocation.offset = hole->second;
        books.shared_free.erase(hole);
        return true;
    }
    allocation.offset = books.shared_end;
    books.shared_end += allocation.size;
    return ::ftruncate(books.shared_file, static_cast<off_t>(books.shared_end)) == 0;
}

bool own_file(VmmAllocation &allocation) {
    allocation.file = ::memfd_create("curb-sim-vmm-exportable", MFD_CLOEXEC);
    struct stat status {};
    if (allocation.file < 0 || ::ftruncate(allocation.file, static_cast<off_t>(allocation.size)) != 0 ||
        ::fstat(allocation.file, &status) != 0)
        return false;
    allocation.inode = status.st_ino;
    return true;
}

void check_properties(const CUmemAllocationProp *properties) {
    if (!properties ||
        (properties->type != CU_MEM_ALLOCATION_TYPE_PINNED && properties->type != CU_MEM_ALLOCATION_TYPE_MANAGED))
        throw CUDA_ERROR_INVALID_VALUE;
    const CUmemLocation &location = properties->location;
    if (location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
        find_device(location.id);
        return;
    }
    const bool host = location.type == CU_MEM_LOCATION_TYPE_HOST || location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
                      location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
    if (!host) throw CUDA_ERROR_INVALID_VALUE;
}

void end_if_unused(CUmemGenericAllocationHandle handle) {
    const VmmAllocation *allocation = all<VmmAllocation>().find(handle);
    if (allocation->references == 0 && allocation->mappings == 0) all<VmmAllocation>().remove(handle);
}

// A handle is valid while the program holds a reference. Mappings alone keep the memory, not the handle.
VmmAllocation *find_handle(CUmemGenericAllocationHandle handle) {
    VmmAllocation *allocation = all<VmmAllocation>().at(handle);
    return allocation->references ? allocation : throw CUDA_ERROR_INVALID_VALUE;
}

// Returns whether the range lies in one reservation.
bool reserved(CUdeviceptr start, uint64_t size) {
    const auto &reservations = driver().vmm_books.reservations;
    auto after = reservations.upper_bound(start);
    if (after == reservations.begin() || size > kAbsurd) return false;
    const auto &[first, whole] = *std::prev(after);
    return start + size <= first + whole;
}

bool nothing_in(CUdeviceptr start, uint64_t size) {
    const auto next = driver().allocations.lower_bound(start);
    return (next == driver().allocations.end() || next->first >= start + size) && !allocation_around(start);
}

const Allocation *mapping_around(CUdeviceptr address) {
    const Allocation *mapping = allocation_around(address);
    return mapping && mapping->kind == Allocation::Kind::mapping ? mapping : throw CUDA_ERROR_INVALID_VALUE;
}

// Returns the mappings that make up the range exactly; empty if they do not.
std::vector<Allocation *> mappings_of(CUdeviceptr start, uint64_t size) {
    std::vector<Allocation *> found;
    if (!size || size > kAbsurd) return found;
    for (CUdeviceptr at = start; at < start + size;) {
        Allocation *mapping = allocation_around(at);
        if (!mapping || mapping->kind != Allocation::Kind::mapping) return {};
        if (mapping->start != at || at + mapping->bytes > start + size) return {};
        found.push_back(mapping);
        at = mapping->start + mapping->bytes;
    }
    return found;
}

}  // namespace

VmmAllocation::~VmmAllocation() {
    if (inode) {
        if (file >= 0) ::close(file);
    } else if (file >= 0) {
        ::fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                    static_cast<off_t>(size));
        driver().vmm_books.shared_free.emplace(size, offset);
    }
    if (opened) driver().machine->close_shared(inode);
    if (charged && exported) credit_shared(inode, properties.location.id, Use::vmm, size);
    if (charged && !exported) credit(properties.location.id, Use::vmm, size);
}

void add_mapping(CUmemGenericAllocationHandle handle) { ++find_handle(handle)->mappings; }

void end_mapping(CUmemGenericAllocationHandle handle) {
    --all<VmmAllocation>().find(handle)->mappings;
    end_if_unused(handle);
}

CUdeviceptr next_contents(CUdeviceptr at, CUdeviceptr end) {
    const Allocation *mapping = allocation_around(at);
    const VmmAllocation *memory =
        mapping && mapping->kind == Allocation::Kind::mapping ? all<VmmAllocation>().find(mapping->handle) : nullptr;
    if (!memory || memory->file < 0) return at;
    const off_t first = static_cast<off_t>(memory->offset + (at - mapping->start));
    const off_t data = ::lseek(memory->file, first, SEEK_DATA);
    const CUdeviceptr last = std::min(end, mapping->start + mapping->bytes);
    if (data < 0) return errno == ENXIO ? last : at;
    return std::min(last, at + static_cast<uint64_t>(data - first));
}

SIM_CU(10020, cuMemGetAllocationGranularity,
       (size_t * granularity, const CUmemAllocationProp *properties, CUmemAllocationGranularity_flags option),
       (granularity, properties, option)) {
    if (!granularity) throw CUDA_ERROR_INVALID_VALUE;
    check_properties(properties);
    if (option != CU_MEM_ALLOC_GRANULARITY_MINIMUM && option != CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)
        throw CUDA_ERROR_INVALID_VALUE;
    *granularity = kGranule;
}

SIM_CU(10020, cuMemCreate,
       (CUmemGenericAllocationHandle * handle, size_t size, const CUmemAllocationProp *properties,
        unsigned long long flags),
       (handle, size, properties, flags)) {
    if (!handle || !size || flags) throw CUDA_ERROR_INVALID_VALUE;
    check_properties(properties);
    if (size > kAbsurd) throw CUDA_ERROR_OUT_OF_MEMORY;
    if (size % kGranule) throw CUDA_ERROR_INVALID_VALUE;
    this_call_is_about(size);
    auto made = std::make_unique<VmmAllocation>();
    made->properties = *properties;
    made->size = size;
    const bool exportable = properties->requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    if (made->on_device()) {
        charge(properties->location.id, Use::vmm, size);
        made->charged = true;
    }
    if (exportable ? !own_file(*made) : !place_in_shared_file(*made)) throw CUDA_ERROR_OUT_OF_MEMORY;
    *handle = all<VmmAllocation>().add(std::move(made))->handle;
}

SIM_CU(10020, cuMemRelease, (CUmemGenericAllocationHandle handle), (handle)) {
    VmmAllocation *allocation = find_handle(handle);
    this_call_is_about(allocation->size);
    --allocation->references;
    end_if_unused(handle);
}

SIM_CU(11000, cuMemRetainAllocationHandle, (CUmemGenericAllocationHandle * handle, void *address), (handle, address)) {
    if (!handle) throw CUDA_ERROR_INVALID_VALUE;
    const Allocation *mapping = mapping_around(reinterpret_cast<CUdeviceptr>(address));
    ++all<VmmAllocation>().find(mapping->handle)->references;
    *handle = mapping->handle;
}

SIM_CU(10020, cuMemGetAllocationPropertiesFromHandle,
       (CUmemAllocationProp * properties, CUmemGenericAllocationHandle handle), (properties, handle)) {
    VmmAllocation *allocation = find_handle(handle);
    if (!properties) throw CUDA_ERROR_INVALID_VALUE;
    *properties = allocation->properties;
}

SIM_CU(10020, cuMemAddressReserve,
       (CUdeviceptr * start, size_t size, size_t alignment, CUdeviceptr wish, unsigned long long flags),
       (start, size, alignment, wish, flags)) {
    if (!start || !size || flags || size % kGranule || (alignment & (alignment - 1))) throw CUDA_ERROR_INVALID_VALUE;
    if (size > kAbsurd) throw CUDA_ERROR_OUT_OF_MEMORY;
    const CUdeviceptr taken = driver().addresses.take(size, std::max<uint64_t>(alignment, kGranule), wish);
    if (!taken) throw CUDA_ERROR_OUT_OF_MEMORY;
    driver().vmm_books.reservations[taken] = size;
    *start = taken;
}

SIM_CU(10020, cuMemAddressFree, (CUdeviceptr start, size_t size), (start, size)) {
    auto &reservations = driver().vmm_books.reservations;
    const auto found = reservations.find(start);
    if (found == reservations.end() || found->second != size) throw CUDA_ERROR_INVALID_VALUE;
    if (!nothing_in(start, size)) throw CUDA_ERROR_INVALID_VALUE;
    reservations.erase(found);
    driver().addresses.give(start, size);
}

SIM_CU(10020, cuMemMap,
       (CUdeviceptr start, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags),
       (start, size, offset, handle, flags)) {
    VmmAllocation *allocation = find_handle(handle);
    // "offset: currently must be zero" (cuda.h)
    if (flags || offset || !size || size % kGranule || start % kGranule) throw CUDA_ERROR_INVALID_VALUE;
    if (size > allocation->size) throw CUDA_ERROR_NOT_SUPPORTED;  // measured on an H200
    if (!reserved(start, size)) throw CUDA_ERROR_INVALID_VALUE;
    if (!nothing_in(start, size)) throw CUDA_ERROR_INVALID_VALUE;
    if (!share(start, size, allocation->file, allocation->offset)) throw CUDA_ERROR_OUT_OF_MEMORY;
    this_call_is_about(size);
    ++allocation->mappings;
    add_allocation({.kind = Allocation::Kind::mapping,
                    .start = start,
                    .bytes = size,
                    .device = allocation->on_device() ? allocation->properties.location.id : 0,
                    .handle = handle,
                    .accessible = false});
}

SIM_CU(10020, cuMemUnmap, (CUdeviceptr start, size_t size), (start, size)) {
    const std::vector<Allocation *> mappings = mappings_of(start, size);
    // Unmapping a reserved range without mappings is no error (measured on an H200).
    if (mappings.empty() && !(reserved(start, size) && nothing_in(start, size))) throw CUDA_ERROR_INVALID_VALUE;
    this_call_is_about(size);
    for (const Allocation *mapping : mappings) {
        const CUmemGenericAllocationHandle handle = mapping->handle;
        unshare(mapping->start, mapping->bytes);
        driver().allocations.erase(CUdeviceptr{mapping->start});
        end_mapping(handle);
    }
}

SIM_CU(10020, cuMemSetAccess, (CUdeviceptr start, size_t size, const CUmemAccessDesc *access, size_t count),
       (start, size, access, count)) {
    if (!access || !count) throw CUDA_ERROR_INVALID_VALUE;
    const std::vector<Allocation *> mappings = mappings_of(start, size);
    if (mappings.empty()) throw CUDA_ERROR_INVALID_VALUE;
    for (Allocation *mapping : mappings) mapping->accessible = access[count - 1].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE;
}

SIM_CU(10020, cuMemGetAccess, (unsigned long long *flags, const CUmemLocation *location, CUdeviceptr address),
       (flags, location, address)) {
    if (!flags || !location) throw CUDA_ERROR_INVALID_VALUE;
    if (const Allocation *found = allocation_around(address); found && found->kind == Allocation::Kind::plain) {
        *flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;  // measured on an H200
        return;
    }
    const Allocation *mapping = mapping_around(address);
    *flags = mapping->accessible ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
}

SIM_CU(10020, cuMemExportToShareableHandle,
       (void *out, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type, unsigned long long flags),
       (out, handle, type, flags)) {
    VmmAllocation *allocation = find_handle(handle);
    if (!out || flags) throw CUDA_ERROR_INVALID_VALUE;
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) throw CUDA_ERROR_NOT_SUPPORTED;
    if (!allocation->inode) throw CUDA_ERROR_INVALID_VALUE;  // not created as exportable
    if (allocation->charged &&
        !driver().machine->share(allocation->inode, device_at(allocation->properties.location.id).gpu, Use::vmm,
                                 allocation->size))
        throw CUDA_ERROR_OUT_OF_MEMORY;
    allocation->exported = allocation->charged;
    export_file(allocation->file, out);
}

// A machine without NVSwitch has no multicast objects.
SIM_CU(12010, cuMulticastBindMem,
       (CUmemGenericAllocationHandle object, size_t at, CUmemGenericAllocationHandle handle, size_t offset, size_t size,
        unsigned long long flags),
       (object, at, handle, offset, size, flags)) {
    find_handle(handle);
    throw flags ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_SUPPORTED;
}

SIM_CU(12010, cuMulticastBindAddr,
       (CUmemGenericAllocationHandle object, size_t at, CUdeviceptr address, size_t size, unsigned long long flags),
       (object, at, address, size, flags)) {
    mapping_around(address);
    throw flags ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_SUPPORTED;
}

// In the process that created it: another reference. In others: memory that is not charged there.
SIM_CU(10020, cuMemImportFromShareableHandle,
       (CUmemGenericAllocationHandle * handle, void *shareable, CUmemAllocationHandleType type),
       (handle, shareable, type)) {
    if (!handle) throw CUDA_ERROR_INVALID_VALUE;
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) throw CUDA_ERROR_NOT_SUPPORTED;
    const int file = static_cast<int>(reinterpret_cast<intptr_t>(shareable));
    struct stat status {};
    if (::fcntl(file, F_GET_SEALS) < 0 || ::fstat(file, &status) != 0 || status.st_size % kGranule)
        throw CUDA_ERROR_INVALID_VALUE;  // no memfd, so none of ours
    VmmAllocation *known = nullptr;
    all<VmmAllocation>().each([&](VmmAllocation &allocation) {
        if (allocation.inode == status.st_ino) known = &allocation;
    });
    if (known) {
        ++known->references;
        *handle = known->handle;
        return;
    }
    auto made = std::make_unique<VmmAllocation>();
    made->size = static_cast<uint64_t>(status.st_size);
    made->inode = status.st_ino;
    made->file = ::fcntl(file, F_DUPFD_CLOEXEC, 0);
    made->opened = driver().machine->open_shared(status.st_ino);
    made->properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    made->properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    made->properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
    *handle = all<VmmAllocation>().add(std::move(made))->handle;
}

}  // namespace curb::sim
