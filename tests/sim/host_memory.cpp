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

CUresult allocate(void **start, uint64_t bytes) {
    if (!start || !bytes) return CUDA_ERROR_INVALID_VALUE;
    Context *context = nullptr;
    if (const CUresult error = current_context(&context)) return error;
    if (const CUresult error = refuse_during_capture()) return error;
    if (bytes > kAbsurd) return CUDA_ERROR_OUT_OF_MEMORY;
    void *memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    ranges()[reinterpret_cast<uint64_t>(memory)] = {bytes, false};
    *start = memory;
    return CUDA_SUCCESS;
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

SIM_CU(cuMemAllocHost_v2, (void **start, size_t bytes), (start, bytes)) { return allocate(start, bytes); }
SIM_CU(cuMemHostAlloc, (void **start, size_t bytes, [[maybe_unused]] unsigned flags), (start, bytes, flags)) {
    return allocate(start, bytes);
}

SIM_CU(cuMemFreeHost, (void *start), (start)) {
    if (!start) return CUDA_SUCCESS;
    const auto found = ranges().find(reinterpret_cast<uint64_t>(start));
    if (found == ranges().end() || found->second.registered) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult error = refuse_during_capture()) return error;
    ::munmap(start, found->second.bytes);
    ranges().erase(found);
    return CUDA_SUCCESS;
}

SIM_CU(cuMemHostRegister_v2, (void *start, size_t bytes, [[maybe_unused]] unsigned flags), (start, bytes, flags)) {
    if (!start || !bytes) return CUDA_ERROR_INVALID_VALUE;
    Context *context = nullptr;
    CUdeviceptr first = 0;
    uint64_t size = 0;
    if (const CUresult error = current_context(&context)) return error;
    if (is_pinned_host(reinterpret_cast<CUdeviceptr>(start), &first, &size))
        return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    ranges()[reinterpret_cast<uint64_t>(start)] = {bytes, true};
    return CUDA_SUCCESS;
}

SIM_CU(cuMemHostUnregister, (void *start), (start)) {
    const auto found = ranges().find(reinterpret_cast<uint64_t>(start));
    if (found == ranges().end() || !found->second.registered) return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    ranges().erase(found);
    return CUDA_SUCCESS;
}

SIM_CU(cuMemHostGetDevicePointer_v2, (CUdeviceptr * device, void *pointer, unsigned flags), (device, pointer, flags)) {
    CUdeviceptr first = 0;
    uint64_t size = 0;
    if (!device || flags) return CUDA_ERROR_INVALID_VALUE;
    if (!is_pinned_host(reinterpret_cast<CUdeviceptr>(pointer), &first, &size)) return CUDA_ERROR_INVALID_VALUE;
    *device = reinterpret_cast<CUdeviceptr>(pointer);
    return CUDA_SUCCESS;
}

}  // namespace curb::sim
