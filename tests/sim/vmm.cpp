#include "vmm.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <iterator>

#include "driver.hpp"

namespace curb::sim {

namespace {

// Gives an allocation a place in the file that all share, which grows as needed.
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

CUresult check_properties(const CUmemAllocationProp *properties) {
    if (!properties ||
        (properties->type != CU_MEM_ALLOCATION_TYPE_PINNED && properties->type != CU_MEM_ALLOCATION_TYPE_MANAGED))
        return CUDA_ERROR_INVALID_VALUE;
    const CUmemLocation &location = properties->location;
    if (location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
        Device *device = nullptr;
        return find_device(location.id, &device);
    }
    const bool host = location.type == CU_MEM_LOCATION_TYPE_HOST || location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
                      location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
    return host ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

void end_if_unused(CUmemGenericAllocationHandle handle) {
    const VmmAllocation *allocation = driver().vmm.find(handle);
    if (allocation->references == 0 && allocation->mappings == 0) driver().vmm.remove(handle);
}

// A handle is good for as long as the program holds a reference; mappings alone keep the memory, not the handle.
CUresult find_handle(CUmemGenericAllocationHandle handle, VmmAllocation **allocation) {
    *allocation = driver().vmm.find(handle);
    return *allocation && (*allocation)->references ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// Whether the range lies in one reservation.
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

// The mappings that make up the range exactly, or none.
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
    if (on_device() && !imported) credit(properties.location.id, Use::vmm, size);
}

CUresult add_mapping(CUmemGenericAllocationHandle handle) {
    VmmAllocation *allocation = nullptr;
    if (const CUresult error = find_handle(handle, &allocation)) return error;
    ++allocation->mappings;
    return CUDA_SUCCESS;
}

void end_mapping(CUmemGenericAllocationHandle handle) {
    --driver().vmm.find(handle)->mappings;
    end_if_unused(handle);
}

SIM_CU(cuMemGetAllocationGranularity,
       (size_t * granularity, const CUmemAllocationProp *properties, CUmemAllocationGranularity_flags option),
       (granularity, properties, option)) {
    if (!granularity) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult error = check_properties(properties)) return error;
    if (option != CU_MEM_ALLOC_GRANULARITY_MINIMUM && option != CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)
        return CUDA_ERROR_INVALID_VALUE;
    *granularity = kGranule;
    return CUDA_SUCCESS;
}

SIM_CU(cuMemCreate,
       (CUmemGenericAllocationHandle * handle, size_t size, const CUmemAllocationProp *properties,
        unsigned long long flags),
       (handle, size, properties, flags)) {
    if (!handle || !size || flags) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult error = check_properties(properties)) return error;
    if (size > kAbsurd) return CUDA_ERROR_OUT_OF_MEMORY;
    if (size % kGranule) return CUDA_ERROR_INVALID_VALUE;
    this_call_is_about(size);
    auto made = std::make_unique<VmmAllocation>();
    made->properties = *properties;
    made->size = size;
    const bool exportable = properties->requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    if (made->on_device())
        if (const CUresult error = charge(properties->location.id, Use::vmm, size)) {
            made->imported = true;  // nothing to give back
            return error;
        }
    if (exportable ? !own_file(*made) : !place_in_shared_file(*made)) return CUDA_ERROR_OUT_OF_MEMORY;
    *handle = driver().vmm.add(std::move(made))->handle;
    return CUDA_SUCCESS;
}

SIM_CU(cuMemRelease, (CUmemGenericAllocationHandle handle), (handle)) {
    VmmAllocation *allocation = nullptr;
    if (const CUresult error = find_handle(handle, &allocation)) return error;
    this_call_is_about(allocation->size);
    --allocation->references;
    end_if_unused(handle);
    return CUDA_SUCCESS;
}

SIM_CU(cuMemRetainAllocationHandle, (CUmemGenericAllocationHandle * handle, void *address), (handle, address)) {
    if (!handle) return CUDA_ERROR_INVALID_VALUE;
    const Allocation *mapping = allocation_around(reinterpret_cast<CUdeviceptr>(address));
    if (!mapping || mapping->kind != Allocation::Kind::mapping) return CUDA_ERROR_INVALID_VALUE;
    ++driver().vmm.find(mapping->handle)->references;
    *handle = mapping->handle;
    return CUDA_SUCCESS;
}

SIM_CU(cuMemGetAllocationPropertiesFromHandle, (CUmemAllocationProp * properties, CUmemGenericAllocationHandle handle),
       (properties, handle)) {
    VmmAllocation *allocation = nullptr;
    if (const CUresult error = find_handle(handle, &allocation)) return error;
    if (!properties) return CUDA_ERROR_INVALID_VALUE;
    *properties = allocation->properties;
    return CUDA_SUCCESS;
}

SIM_CU(cuMemAddressReserve,
       (CUdeviceptr * start, size_t size, size_t alignment, CUdeviceptr wish, unsigned long long flags),
       (start, size, alignment, wish, flags)) {
    if (!start || !size || flags || size % kGranule || (alignment & (alignment - 1))) return CUDA_ERROR_INVALID_VALUE;
    if (size > kAbsurd) return CUDA_ERROR_OUT_OF_MEMORY;
    const CUdeviceptr taken = driver().addresses.take(size, std::max<uint64_t>(alignment, kGranule), wish);
    if (!taken) return CUDA_ERROR_OUT_OF_MEMORY;
    driver().vmm_books.reservations[taken] = size;
    *start = taken;
    return CUDA_SUCCESS;
}

SIM_CU(cuMemAddressFree, (CUdeviceptr start, size_t size), (start, size)) {
    auto &reservations = driver().vmm_books.reservations;
    const auto found = reservations.find(start);
    if (found == reservations.end() || found->second != size) return CUDA_ERROR_INVALID_VALUE;
    if (!nothing_in(start, size)) return CUDA_ERROR_INVALID_VALUE;
    reservations.erase(found);
    driver().addresses.give(start, size);
    return CUDA_SUCCESS;
}

SIM_CU(cuMemMap,
       (CUdeviceptr start, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags),
       (start, size, offset, handle, flags)) {
    VmmAllocation *allocation = nullptr;
    if (const CUresult error = find_handle(handle, &allocation)) return error;
    // "offset: currently must be zero" (cuda.h)
    if (flags || offset || !size || size % kGranule || start % kGranule) return CUDA_ERROR_INVALID_VALUE;
    if (size > allocation->size) return CUDA_ERROR_NOT_SUPPORTED;  // measured on an H200
    if (!reserved(start, size)) return CUDA_ERROR_INVALID_VALUE;
    if (!nothing_in(start, size)) return CUDA_ERROR_INVALID_VALUE;
    if (!share(start, size, allocation->file, allocation->offset)) return CUDA_ERROR_OUT_OF_MEMORY;
    this_call_is_about(size);
    ++allocation->mappings;
    add_allocation({.kind = Allocation::Kind::mapping,
                    .start = start,
                    .bytes = size,
                    .device = allocation->on_device() ? allocation->properties.location.id : 0,
                    .handle = handle,
                    .accessible = false});
    return CUDA_SUCCESS;
}

SIM_CU(cuMemUnmap, (CUdeviceptr start, size_t size), (start, size)) {
    const std::vector<Allocation *> mappings = mappings_of(start, size);
    // To unmap a reserved range in which nothing is mapped is no error (measured on an H200).
    if (mappings.empty())
        return reserved(start, size) && nothing_in(start, size) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    this_call_is_about(size);
    for (const Allocation *mapping : mappings) {
        const CUmemGenericAllocationHandle handle = mapping->handle;
        unshare(mapping->start, mapping->bytes);
        driver().allocations.erase(CUdeviceptr{mapping->start});
        end_mapping(handle);
    }
    return CUDA_SUCCESS;
}

SIM_CU(cuMemSetAccess, (CUdeviceptr start, size_t size, const CUmemAccessDesc *access, size_t count),
       (start, size, access, count)) {
    if (!access || !count) return CUDA_ERROR_INVALID_VALUE;
    const std::vector<Allocation *> mappings = mappings_of(start, size);
    if (mappings.empty()) return CUDA_ERROR_INVALID_VALUE;
    for (Allocation *mapping : mappings) mapping->accessible = access[count - 1].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
}

SIM_CU(cuMemGetAccess, (unsigned long long *flags, const CUmemLocation *location, CUdeviceptr address),
       (flags, location, address)) {
    if (!flags || !location) return CUDA_ERROR_INVALID_VALUE;
    const Allocation *mapping = allocation_around(address);
    if (!mapping || mapping->kind != Allocation::Kind::mapping) return CUDA_ERROR_INVALID_VALUE;
    *flags = mapping->accessible ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
}

SIM_CU(cuMemExportToShareableHandle,
       (void *out, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type, unsigned long long flags),
       (out, handle, type, flags)) {
    VmmAllocation *allocation = nullptr;
    if (const CUresult error = find_handle(handle, &allocation)) return error;
    if (!out || flags) return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
    if (!allocation->inode) return CUDA_ERROR_INVALID_VALUE;  // not created as exportable
    const int file = ::fcntl(allocation->file, F_DUPFD_CLOEXEC, 0);
    if (file < 0) return CUDA_ERROR_OPERATING_SYSTEM;
    *static_cast<int *>(out) = file;
    return CUDA_SUCCESS;
}

// In the process that made it: another reference. In another one: memory that is not charged here.
SIM_CU(cuMemImportFromShareableHandle,
       (CUmemGenericAllocationHandle * handle, void *shareable, CUmemAllocationHandleType type),
       (handle, shareable, type)) {
    if (!handle) return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
    const int file = static_cast<int>(reinterpret_cast<intptr_t>(shareable));
    struct stat status {};
    if (::fcntl(file, F_GET_SEALS) < 0 || ::fstat(file, &status) != 0 || status.st_size % kGranule)
        return CUDA_ERROR_INVALID_VALUE;  // no memfd, so none of ours
    VmmAllocation *known = nullptr;
    driver().vmm.each([&](VmmAllocation &allocation) {
        if (allocation.inode == status.st_ino) known = &allocation;
    });
    if (known) {
        ++known->references;
        *handle = known->handle;
        return CUDA_SUCCESS;
    }
    auto made = std::make_unique<VmmAllocation>();
    made->imported = true;
    made->size = static_cast<uint64_t>(status.st_size);
    made->inode = status.st_ino;
    made->file = ::fcntl(file, F_DUPFD_CLOEXEC, 0);
    made->properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    made->properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    made->properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
    *handle = driver().vmm.add(std::move(made))->handle;
    return CUDA_SUCCESS;
}

}  // namespace curb::sim
