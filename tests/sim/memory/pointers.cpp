// Attributes of addresses.
#include "driver.hpp"
#include "host_memory.hpp"

namespace curb::sim {

namespace {

struct Known {
    bool pinned_host = false;
    CUdeviceptr start = 0;
    uint64_t bytes = 0;
    const Allocation *allocation = nullptr;
};

bool look_up(CUdeviceptr address, Known *known) {
    if (const Allocation *allocation = allocation_around(address)) {
        *known = {false, allocation->start, allocation->bytes, allocation};
        return true;
    }
    known->pinned_host = is_pinned_host(address, &known->start, &known->bytes);
    return known->pinned_host;
}

template <class Value>
void answer(void *out, Value value) {
    *static_cast<Value *>(out) = value;
}

void attribute_of(void *out, CUpointer_attribute attribute, CUdeviceptr address, const Known &known) {
    const Allocation *allocation = known.allocation;
    const auto is = [=](Allocation::Kind kind) { return allocation && allocation->kind == kind; };
    const bool managed = is(Allocation::Kind::managed);
    const CUmemAllocationProp properties = is(Allocation::Kind::mapping)
                                               ? all<VmmAllocation>().find(allocation->handle)->properties
                                               : CUmemAllocationProp{};
    switch (attribute) {
        case CU_POINTER_ATTRIBUTE_CONTEXT: return answer(out, allocation ? allocation->context : nullptr);
        case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
            return answer<unsigned>(out, allocation ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST);
        case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: return answer(out, address);
        case CU_POINTER_ATTRIBUTE_HOST_POINTER:
            if (known.pinned_host || managed) return answer(out, host(address));
            break;
        case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
            return answer<unsigned long long>(out, allocation ? allocation->id : known.start);
        case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: return answer<unsigned>(out, allocation && allocation->sync_memops);
        case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
            return answer<unsigned>(out, is(Allocation::Kind::plain) || properties.allocFlags.gpuDirectRDMACapable);
        case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
            return answer<unsigned>(out, is(Allocation::Kind::plain));  // measured on an H200
        case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
            return answer<unsigned long long>(out, properties.requestedHandleTypes);
        case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR: return answer(out, round_down(known.start, kGranule));
        case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
            return answer<size_t>(out,
                                  round_up(known.start + known.bytes, kGranule) - round_down(known.start, kGranule));
        case CU_POINTER_ATTRIBUTE_P2P_TOKENS: break;  // of a kernel interface that is not simulated
        case CU_POINTER_ATTRIBUTE_IS_MANAGED: return answer<unsigned>(out, managed);
        case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: return answer(out, allocation ? allocation->device : 0);
        case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: return answer(out, known.start);
        case CU_POINTER_ATTRIBUTE_RANGE_SIZE: return answer<size_t>(out, known.bytes);
        case CU_POINTER_ATTRIBUTE_MAPPED: return answer(out, true);
        case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
            return answer(out, allocation && allocation->pool ? allocation->pool->handle : nullptr);
    }
    throw CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

SIM_CU(4000, cuPointerGetAttribute, (void *out, CUpointer_attribute attribute, CUdeviceptr address),
       (out, attribute, address)) {
    Known known;
    if (!out || !look_up(address, &known)) throw CUDA_ERROR_INVALID_VALUE;
    attribute_of(out, attribute, address, known);
}

// The one attribute that can be set (cuda.h).
SIM_CU(6000, cuPointerSetAttribute, (const void *value, CUpointer_attribute attribute, CUdeviceptr address),
       (value, attribute, address)) {
    Allocation *allocation = allocation_around(address);
    if (!value || !allocation || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) throw CUDA_ERROR_INVALID_VALUE;
    if (allocation->kind == Allocation::Kind::mapping) throw CUDA_ERROR_NOT_SUPPORTED;  // measured on an H200
    allocation->sync_memops = *static_cast<const unsigned *>(value) != 0;
}

// An address that the driver does not know is no error here: its attributes are zero (cuda.h).
SIM_CU(7000, cuPointerGetAttributes, (unsigned count, CUpointer_attribute *attributes, void **out, CUdeviceptr address),
       (count, attributes, out, address)) {
    if (!count || !attributes || !out) throw CUDA_ERROR_INVALID_VALUE;
    Known known;
    const bool found = look_up(address, &known);
    for (unsigned i = 0; i < count; ++i) {
        if (!out[i]) throw CUDA_ERROR_INVALID_VALUE;
        if (found && !result_of([&] { attribute_of(out[i], attributes[i], address, known); })) continue;
        switch (attributes[i]) {
            case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
            case CU_POINTER_ATTRIBUTE_IS_MANAGED:
            case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE: answer(out[i], 0u); break;
            case CU_POINTER_ATTRIBUTE_HOST_POINTER: answer(out[i], address); break;  // measured on an H200
            case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: answer(out[i], -2); break;     // cuda.h: "CU_DEVICE_INVALID"
            case CU_POINTER_ATTRIBUTE_MAPPED: answer(out[i], false); break;
            default: answer<void *>(out[i], nullptr); break;
        }
    }
}

}  // namespace curb::sim
