// Plain and managed device memory, which dies with its context.
#include "driver.hpp"
#include "running.hpp"
#include "sharing.hpp"

namespace curb::sim {

namespace {

void allocate(CUdeviceptr *start, uint64_t bytes) {
    if (!start || !bytes) throw CUDA_ERROR_INVALID_VALUE;
    Context *context = current_context();
    refuse_during_capture();
    *start = context->plain.take(bytes);
    this_call_is_about(bytes);
    add_allocation({.kind = Allocation::Kind::plain,
                    .start = *start,
                    .bytes = bytes,
                    .device = context->device,
                    .context = context->handle});
}

uint64_t managed_size(const Allocation &allocation) { return round_up(allocation.bytes, kGranule); }

}  // namespace

void free_managed(const Allocation &allocation) {
    driver().addresses.give(allocation.start, managed_size(allocation));
    credit(allocation.device, Use::managed, managed_size(allocation));
}

SIM_CU(3020, cuMemGetInfo_v2, (size_t * free, size_t *total), (free, total)) {
    Context *context = current_context();
    if (!free || !total) throw CUDA_ERROR_INVALID_VALUE;
    const DeviceMemory memory = memory_of(context->device);
    *free = memory.free() - (is_unified() ? std::min(memory.free(), kPageCache) : 0);
    *total = memory.total;
}

SIM_CU(3020, cuMemAlloc_v2, (CUdeviceptr * start, size_t bytes), (start, bytes)) { allocate(start, bytes); }

SIM_CU(3020, cuMemAllocPitch_v2, (CUdeviceptr * start, size_t *pitch, size_t width, size_t height, unsigned element),
       (start, pitch, width, height, element)) {
    if (!start || !pitch || !width || !height) throw CUDA_ERROR_INVALID_VALUE;
    if (element != 4 && element != 8 && element != 16) throw CUDA_ERROR_INVALID_VALUE;
    if (width > kAbsurd || height > kAbsurd / round_up(width, kBlockAlignment)) throw CUDA_ERROR_OUT_OF_MEMORY;
    allocate(start, round_up(width, kBlockAlignment) * height);
    *pitch = round_up(width, kBlockAlignment);
}

// Never fails for lack of device memory: the rest stays on the host. It counts as resident from the start. The real
// driver makes pages resident as they are touched (docs/results/driver.md), which the simulator cannot see.
SIM_CU(6000, cuMemAllocManaged, (CUdeviceptr * start, size_t bytes, unsigned flags), (start, bytes, flags)) {
    if (!start || !bytes || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST))
        throw CUDA_ERROR_INVALID_VALUE;
    Context *context = current_context();
    refuse_during_capture();
    if (bytes > kAbsurd) throw CUDA_ERROR_OUT_OF_MEMORY;
    const CUdeviceptr address = driver().addresses.take(round_up(bytes, kGranule), kGranule);
    if (!address) throw CUDA_ERROR_OUT_OF_MEMORY;
    const Allocation &made = add_allocation({.kind = Allocation::Kind::managed,
                                             .start = address,
                                             .bytes = bytes,
                                             .device = context->device,
                                             .context = context->handle});
    charge(made.device, Use::managed, managed_size(made));
    *start = address;
}

// Frees a block of any allocating call, and waits for the work of its context (docs/results/driver.md). That wait does
// not mark frees into pools as complete (measured on an H200).
SIM_CU(3020, cuMemFree_v2, (CUdeviceptr start), (start)) {
    if (!start) return;
    refuse_during_capture();
    const Allocation *found = find_allocation(start);
    if (!found) throw CUDA_ERROR_INVALID_VALUE;
    if (found->kind == Allocation::Kind::plain)
        wait_for_work_of(found->context);
    else
        wait_for_all_work(found->device);
    found = find_allocation(start);
    if (!found) throw CUDA_ERROR_INVALID_VALUE;  // another thread has freed it meanwhile
    const Allocation allocation = *found;
    switch (allocation.kind) {
        case Allocation::Kind::mapping:  // cuMemUnmap frees it
        case Allocation::Kind::ipc:      // cuIpcCloseMemHandle frees it
        case Allocation::Kind::global:   // its module frees it
            throw CUDA_ERROR_INVALID_VALUE;
        case Allocation::Kind::plain:
            all<Context>().find(allocation.context)->plain.give(start);
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
}

SIM_CU(3020, cuMemGetAddressRange_v2, (CUdeviceptr * start, size_t *bytes, CUdeviceptr address),
       (start, bytes, address)) {
    const Allocation *found = allocation_around(address);
    if (!found) throw CUDA_ERROR_NOT_FOUND;
    if (start) *start = found->start;
    if (bytes) *bytes = found->bytes;
}

}  // namespace curb::sim
