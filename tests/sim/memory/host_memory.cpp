// Pinned host memory: no device memory, and the same address on both sides.
#include <sys/mman.h>

#include "driver.hpp"
#include "host_memory.hpp"

namespace curb::sim {

namespace {

struct HostRange {
    uint64_t bytes;
    bool registered;  // the program's own memory
};

std::map<uint64_t, HostRange> &ranges() {
    static auto &all = *new std::map<uint64_t, HostRange>;
    return all;
}

void allocate(void **start, uint64_t bytes) {
    if (!start || !bytes) throw CUDA_ERROR_INVALID_VALUE;
    current_context();
    refuse_during_capture();
    if (bytes > kAbsurd) throw CUDA_ERROR_OUT_OF_MEMORY;
    this_call_is_about(bytes);
    void *memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw CUDA_ERROR_OUT_OF_MEMORY;
    ranges()[reinterpret_cast<uint64_t>(memory)] = {bytes, false};
    *start = memory;
}

}  // namespace

bool is_pinned_host(CUdeviceptr address, CUdeviceptr *start, uint64_t *bytes) {
    auto after = ranges().upper_bound(address);
    if (after == ranges().begin()) return false;
    const auto &[first, range] = *std::prev(after);
    *start = first;
    *bytes = range.bytes;
    return address - first < range.bytes;
}

SIM_CU(3020, cuMemAllocHost_v2, (void **start, size_t bytes), (start, bytes)) { allocate(start, bytes); }
SIM_CU(2020, cuMemHostAlloc, (void **start, size_t bytes, unsigned flags), (start, bytes, flags)) {
    allocate(start, bytes);
}

SIM_CU(2000, cuMemFreeHost, (void *start), (start)) {
    if (!start) return;
    const auto found = ranges().find(reinterpret_cast<uint64_t>(start));
    if (found == ranges().end() || found->second.registered) throw CUDA_ERROR_INVALID_VALUE;
    refuse_during_capture();
    ::munmap(start, found->second.bytes);
    ranges().erase(found);
}

SIM_CU(6050, cuMemHostRegister_v2, (void *start, size_t bytes, unsigned flags), (start, bytes, flags)) {
    if (!start || !bytes) throw CUDA_ERROR_INVALID_VALUE;
    CUdeviceptr first = 0;
    uint64_t size = 0;
    current_context();
    if (is_pinned_host(reinterpret_cast<CUdeviceptr>(start), &first, &size))
        throw CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    ranges()[reinterpret_cast<uint64_t>(start)] = {bytes, true};
}

SIM_CU(4000, cuMemHostUnregister, (void *start), (start)) {
    const auto found = ranges().find(reinterpret_cast<uint64_t>(start));
    if (found == ranges().end() || !found->second.registered) throw CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    ranges().erase(found);
}

// A mapping counts as host memory that the device sees at the same address (measured on an H200).
static bool is_device_visible(void *pointer) {
    const Allocation *allocation = allocation_around(reinterpret_cast<CUdeviceptr>(pointer));
    CUdeviceptr first = 0;
    uint64_t size = 0;
    return (allocation && allocation->kind == Allocation::Kind::mapping) ||
           is_pinned_host(reinterpret_cast<CUdeviceptr>(pointer), &first, &size);
}

SIM_CU(3000, cuMemHostGetFlags, (unsigned *flags, void *pointer), (flags, pointer)) {
    if (!flags || !is_device_visible(pointer)) throw CUDA_ERROR_INVALID_VALUE;
    *flags = 0;
}

SIM_CU(3020, cuMemHostGetDevicePointer_v2, (CUdeviceptr * device, void *pointer, unsigned flags),
       (device, pointer, flags)) {
    if (!device || flags || !is_device_visible(pointer)) throw CUDA_ERROR_INVALID_VALUE;
    *device = reinterpret_cast<CUdeviceptr>(pointer);
}

}  // namespace curb::sim
