// Copies and fills. They really move bytes, so that a test can tell whether data survived.
//
// Rule: an address inside the device address space must lie in live, accessible memory for the whole length; any other
// address is taken to be the program's own, as under unified addressing.
#include <cstring>
#include <vector>

#include "driver.hpp"

namespace curb::sim {

namespace {

enum class Side { any, device };

bool reachable(CUdeviceptr start, uint64_t bytes, Side side) {
    if (!driver().addresses.contains(start)) return side == Side::any && start != 0;
    if (bytes > kAbsurd) return false;
    for (CUdeviceptr at = start; at < start + bytes;) {
        const Allocation *allocation = allocation_around(at);
        if (!allocation || !allocation->accessible) return false;
        at = allocation->start + allocation->bytes;
        // Mappings side by side are one range; other allocations are not (a copy over both is an error).
        if (at < start + bytes && allocation->kind != Allocation::Kind::mapping) return false;
    }
    return true;
}

// While a copy is captured nothing may be live yet; the addresses are looked at when the graph runs.
CUresult copy(CUdeviceptr to, Side to_side, CUdeviceptr from, Side from_side, uint64_t bytes, CUstream handle) {
    Stream *stream = nullptr;
    if (const CUresult error = find_stream(handle, &stream)) return error;
    if (!bytes) return CUDA_SUCCESS;
    const auto valid = [=] { return reachable(to, bytes, to_side) && reachable(from, bytes, from_side); };
    if (!stream->capture && !valid()) return CUDA_ERROR_INVALID_VALUE;
    return submit(*stream, CU_GRAPH_NODE_TYPE_MEMCPY, [=] {
        if (valid()) std::memmove(host(to), host(from), bytes);
    });
}

template <class Value>
CUresult fill(CUdeviceptr start, Value value, uint64_t count, CUstream handle) {
    Stream *stream = nullptr;
    if (const CUresult error = find_stream(handle, &stream)) return error;
    if (start % sizeof value || count > kAbsurd) return CUDA_ERROR_INVALID_VALUE;
    if (!count) return CUDA_SUCCESS;
    const auto valid = [=] { return reachable(start, count * sizeof value, Side::device); };
    if (!stream->capture && !valid()) return CUDA_ERROR_INVALID_VALUE;
    return submit(*stream, CU_GRAPH_NODE_TYPE_MEMSET, [=] {
        if (valid()) std::fill_n(static_cast<Value *>(host(start)), count, value);
    });
}

CUdeviceptr address(const void *pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

}  // namespace

// The blocking forms work in the null stream. They are not taken to be a synchronisation that pools would notice.

SIM_CU_BLOCKING(cuMemcpy, (CUdeviceptr to, CUdeviceptr from, size_t bytes), (to, from, bytes)) {
    return copy(to, Side::any, from, Side::any, bytes, nullptr);
}
SIM_CU_STREAM(cuMemcpyAsync, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream),
              (to, from, bytes, stream)) {
    return copy(to, Side::any, from, Side::any, bytes, stream);
}
SIM_CU_BLOCKING(cuMemcpyHtoD_v2, (CUdeviceptr to, const void *from, size_t bytes), (to, from, bytes)) {
    return copy(to, Side::device, address(from), Side::any, bytes, nullptr);
}
SIM_CU_BLOCKING(cuMemcpyDtoH_v2, (void *to, CUdeviceptr from, size_t bytes), (to, from, bytes)) {
    return copy(address(to), Side::any, from, Side::device, bytes, nullptr);
}
SIM_CU_BLOCKING(cuMemcpyDtoD_v2, (CUdeviceptr to, CUdeviceptr from, size_t bytes), (to, from, bytes)) {
    return copy(to, Side::device, from, Side::device, bytes, nullptr);
}
SIM_CU_STREAM(cuMemcpyHtoDAsync_v2, (CUdeviceptr to, const void *from, size_t bytes, CUstream stream),
              (to, from, bytes, stream)) {
    return copy(to, Side::device, address(from), Side::any, bytes, stream);
}
SIM_CU_STREAM(cuMemcpyDtoHAsync_v2, (void *to, CUdeviceptr from, size_t bytes, CUstream stream),
              (to, from, bytes, stream)) {
    return copy(address(to), Side::any, from, Side::device, bytes, stream);
}
SIM_CU_STREAM(cuMemcpyDtoDAsync_v2, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream),
              (to, from, bytes, stream)) {
    return copy(to, Side::device, from, Side::device, bytes, stream);
}
SIM_CU_BLOCKING(cuMemcpyPeer,
                (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes),
                (to, to_context, from, from_context, bytes)) {
    if (!driver().contexts.find(to_context) || !driver().contexts.find(from_context)) return CUDA_ERROR_INVALID_CONTEXT;
    return copy(to, Side::device, from, Side::device, bytes, nullptr);
}

SIM_CU_BLOCKING(cuMemsetD8_v2, (CUdeviceptr start, unsigned char value, size_t count), (start, value, count)) {
    return fill(start, value, count, nullptr);
}
SIM_CU_BLOCKING(cuMemsetD16_v2, (CUdeviceptr start, unsigned short value, size_t count), (start, value, count)) {
    return fill(start, value, count, nullptr);
}
SIM_CU_BLOCKING(cuMemsetD32_v2, (CUdeviceptr start, unsigned value, size_t count), (start, value, count)) {
    return fill(start, value, count, nullptr);
}
SIM_CU_STREAM(cuMemsetD8Async, (CUdeviceptr start, unsigned char value, size_t count, CUstream stream),
              (start, value, count, stream)) {
    return fill(start, value, count, stream);
}
SIM_CU_STREAM(cuMemsetD32Async, (CUdeviceptr start, unsigned value, size_t count, CUstream stream),
              (start, value, count, stream)) {
    return fill(start, value, count, stream);
}

// Managed memory here is resident from its allocation to its end: hints are accepted and change nothing. (Prefetching
// to the host does not raise `free` on the real card either: docs/results/driver.md.)
static CUresult managed_range(CUdeviceptr start, uint64_t bytes) {
    const Allocation *allocation = allocation_around(start);
    const bool managed = allocation && allocation->kind == Allocation::Kind::managed;
    const bool inside = managed && bytes && bytes <= allocation->start + allocation->bytes - start;
    return inside ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_CU_STREAM(cuMemPrefetchAsync_v2,
              (CUdeviceptr start, size_t bytes, [[maybe_unused]] CUmemLocation location,
               [[maybe_unused]] unsigned flags, CUstream handle),
              (start, bytes, location, flags, handle)) {
    Stream *stream = nullptr;
    if (const CUresult error = find_stream(handle, &stream)) return error;
    return managed_range(start, bytes);
}

SIM_CU(cuMemAdvise_v2,
       (CUdeviceptr start, size_t bytes, [[maybe_unused]] CUmem_advise advice, [[maybe_unused]] CUmemLocation location),
       (start, bytes, advice, location)) {
    return managed_range(start, bytes);
}

}  // namespace curb::sim
