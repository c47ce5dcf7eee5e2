// Plain and managed device memory: what dies with its context.
#include "driver.hpp"
#include "running.hpp"
#include "sharing.hpp"

namespace curb::sim {

namespace {

CUresult allocate(CUdeviceptr *start, uint64_t bytes) {
    if (!start || !bytes) return CUDA_ERROR_INVALID_VALUE;
    Context *context = nullptr;
    if (const CUresult error = current_context(&context)) return error;
    if (const CUresult error = refuse_during_capture()) return error;
    if (const CUresult error = context->plain.take(bytes, start)) return error;
    this_call_is_about(bytes);
    add_allocation({.kind = Allocation::Kind::plain,
                    .start = *start,
                    .bytes = bytes,
                    .device = context->device,
                    .context = context->handle});
    return CUDA_SUCCESS;
}

uint64_t managed_size(const Allocation &allocation) { return round_up(allocation.bytes, kGranule); }

}  // namespace

void free_managed(const Allocation &allocation) {
    driver().addresses.give(allocation.start, managed_size(allocation));
    credit(allocation.device, Use::managed, managed_size(allocation));
}

SIM_CU(cuMemGetInfo_v2, (size_t * free, size_t *total), (free, total)) {
    Context *context = nullptr;
    if (const CUresult error = current_context(&context)) return error;
    if (!free || !total) return CUDA_ERROR_INVALID_VALUE;
    const DeviceMemory memory = memory_of(context->device);
    *free = memory.free();
    *total = memory.total;
    return CUDA_SUCCESS;
}

SIM_CU(cuMemAlloc_v2, (CUdeviceptr * start, size_t bytes), (start, bytes)) { return allocate(start, bytes); }

SIM_CU(cuMemAllocPitch_v2, (CUdeviceptr * start, size_t *pitch, size_t width, size_t height, unsigned element),
       (start, pitch, width, height, element)) {
    if (!start || !pitch || !width || !height) return CUDA_ERROR_INVALID_VALUE;
    if (element != 4 && element != 8 && element != 16) return CUDA_ERROR_INVALID_VALUE;
    if (width > kAbsurd || height > kAbsurd / round_up(width, kBlockAlignment)) return CUDA_ERROR_OUT_OF_MEMORY;
    const CUresult error = allocate(start, round_up(width, kBlockAlignment) * height);
    if (!error) *pitch = round_up(width, kBlockAlignment);
    return error;
}

// Never refused for lack of device memory: what does not fit stays on the host. Counted as resident from the start; the
// real one is as its pages are touched (docs/results/driver.md), which nothing here can see.
SIM_CU(cuMemAllocManaged, (CUdeviceptr * start, size_t bytes, unsigned flags), (start, bytes, flags)) {
    if (!start || !bytes || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST))
        return CUDA_ERROR_INVALID_VALUE;
    Context *context = nullptr;
    if (const CUresult error = current_context(&context)) return error;
    if (const CUresult error = refuse_during_capture()) return error;
    if (bytes > kAbsurd) return CUDA_ERROR_OUT_OF_MEMORY;
    const CUdeviceptr address = driver().addresses.take(round_up(bytes, kGranule), kGranule);
    if (!address) return CUDA_ERROR_OUT_OF_MEMORY;
    const Allocation &made = add_allocation({.kind = Allocation::Kind::managed,
                                             .start = address,
                                             .bytes = bytes,
                                             .device = context->device,
                                             .context = context->handle});
    charge(made.device, Use::managed, managed_size(made));
    *start = address;
    return CUDA_SUCCESS;
}

// Frees what any of the allocating calls gave, and waits for the work of the context that has it
// (docs/results/driver.md). Pools learn nothing from that wait: what was freed into them is not known complete by it
// (measured on an H200).
SIM_CU(cuMemFree_v2, (CUdeviceptr start), (start)) {
    if (!start) return CUDA_SUCCESS;
    if (const CUresult error = refuse_during_capture()) return error;
    const Allocation *found = find_allocation(start);
    if (!found) return CUDA_ERROR_INVALID_VALUE;
    if (found->kind == Allocation::Kind::plain)
        wait_for_work_of(found->context);
    else
        wait_for_all_work(found->device);
    found = find_allocation(start);
    if (!found) return CUDA_ERROR_INVALID_VALUE;  // another thread has freed it meanwhile
    const Allocation allocation = *found;
    switch (allocation.kind) {
        case Allocation::Kind::mapping:  // cuMemUnmap's
        case Allocation::Kind::ipc:      // cuIpcCloseMemHandle's
        case Allocation::Kind::global:   // a module's
            return CUDA_ERROR_INVALID_VALUE;
        case Allocation::Kind::plain:
            driver().contexts.find(allocation.context)->plain.give(start);
            driver().allocations.erase(start);
            break;
        case Allocation::Kind::managed:
            free_managed(allocation);
            driver().allocations.erase(start);
            break;
        case Allocation::Kind::graph: free_graph_allocation(start); break;
        case Allocation::Kind::pool: free_pool_allocation(start, nullptr); break;
        case Allocation::Kind::pool_import:
        case Allocation::Kind::external: free_foreign(allocation); break;
    }
    this_call_is_about(allocation.bytes);
    return CUDA_SUCCESS;
}

SIM_CU(cuMemGetAddressRange_v2, (CUdeviceptr * start, size_t *bytes, CUdeviceptr address), (start, bytes, address)) {
    const Allocation *found = allocation_around(address);
    if (!found) return CUDA_ERROR_NOT_FOUND;
    if (start) *start = found->start;
    if (bytes) *bytes = found->bytes;
    return CUDA_SUCCESS;
}

}  // namespace curb::sim
