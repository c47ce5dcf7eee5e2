// Copies and fills. They really move bytes, so that tests can check that data survived.
//
// Rule: an address inside the device address space must lie in live, accessible memory for the whole length; any other
// address is taken to be the program's own, as under unified addressing.
#include <cstring>

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
        // A copy may span adjacent mappings, but no other adjacent allocations.
        if (at < start + bytes && allocation->kind != Allocation::Kind::mapping) return false;
    }
    return true;
}

// During a capture the memory need not be live yet, so the addresses are checked again when the graph runs.
void copy(CUdeviceptr to, Side to_side, CUdeviceptr from, Side from_side, uint64_t bytes, CUstream handle) {
    Stream *stream = find_stream(handle);
    if (!bytes) return;
    const auto valid = [=] { return reachable(to, bytes, to_side) && reachable(from, bytes, from_side); };
    if (!stream->capture && !valid()) throw CUDA_ERROR_INVALID_VALUE;
    submit(*stream, CU_GRAPH_NODE_TYPE_MEMCPY, [=](Stream &) {
        if (valid()) std::memmove(host(to), host(from), bytes);
    });
}

template <class Value>
void fill(CUdeviceptr start, Value value, uint64_t count, CUstream handle) {
    Stream *stream = find_stream(handle);
    if (start % sizeof value || count > kAbsurd) throw CUDA_ERROR_INVALID_VALUE;
    if (!count) return;
    const auto valid = [=] { return reachable(start, count * sizeof value, Side::device); };
    if (!stream->capture && !valid()) throw CUDA_ERROR_INVALID_VALUE;
    submit(*stream, CU_GRAPH_NODE_TYPE_MEMSET, [=](Stream &) {
        if (valid()) std::fill_n(static_cast<Value *>(host(start)), count, value);
    });
}

CUdeviceptr address(const void *pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

}  // namespace

// The blocking forms run in the null stream. Pools do not learn from them that work is complete.

SIM_CU_BLOCKING(4000, cuMemcpy, (CUdeviceptr to, CUdeviceptr from, size_t bytes), (to, from, bytes)) {
    copy(to, Side::any, from, Side::any, bytes, nullptr);
}
SIM_CU_STREAM(4000, cuMemcpyAsync, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream),
              (to, from, bytes, stream)) {
    copy(to, Side::any, from, Side::any, bytes, stream);
}
SIM_CU_BLOCKING(3020, cuMemcpyHtoD_v2, (CUdeviceptr to, const void *from, size_t bytes), (to, from, bytes)) {
    copy(to, Side::device, address(from), Side::any, bytes, nullptr);
}
SIM_CU_BLOCKING(3020, cuMemcpyDtoH_v2, (void *to, CUdeviceptr from, size_t bytes), (to, from, bytes)) {
    copy(address(to), Side::any, from, Side::device, bytes, nullptr);
}
SIM_CU_BLOCKING(3020, cuMemcpyDtoD_v2, (CUdeviceptr to, CUdeviceptr from, size_t bytes), (to, from, bytes)) {
    copy(to, Side::device, from, Side::device, bytes, nullptr);
}
SIM_CU_STREAM(3020, cuMemcpyHtoDAsync_v2, (CUdeviceptr to, const void *from, size_t bytes, CUstream stream),
              (to, from, bytes, stream)) {
    copy(to, Side::device, address(from), Side::any, bytes, stream);
}
SIM_CU_STREAM(3020, cuMemcpyDtoHAsync_v2, (void *to, CUdeviceptr from, size_t bytes, CUstream stream),
              (to, from, bytes, stream)) {
    copy(address(to), Side::any, from, Side::device, bytes, stream);
}
SIM_CU_STREAM(3020, cuMemcpyDtoDAsync_v2, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream),
              (to, from, bytes, stream)) {
    copy(to, Side::device, from, Side::device, bytes, stream);
}
SIM_CU_BLOCKING(4000, cuMemcpyPeer,
                (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes),
                (to, to_context, from, from_context, bytes)) {
    all<Context>().at(to_context);
    all<Context>().at(from_context);
    copy(to, Side::device, from, Side::device, bytes, nullptr);
}

SIM_CU_BLOCKING(3020, cuMemsetD8_v2, (CUdeviceptr start, unsigned char value, size_t count), (start, value, count)) {
    fill(start, value, count, nullptr);
}
SIM_CU_BLOCKING(3020, cuMemsetD16_v2, (CUdeviceptr start, unsigned short value, size_t count), (start, value, count)) {
    fill(start, value, count, nullptr);
}
SIM_CU_BLOCKING(3020, cuMemsetD32_v2, (CUdeviceptr start, unsigned value, size_t count), (start, value, count)) {
    fill(start, value, count, nullptr);
}
SIM_CU_STREAM(3020, cuMemsetD8Async, (CUdeviceptr start, unsigned char value, size_t count, CUstream stream),
              (start, value, count, stream)) {
    fill(start, value, count, stream);
}
SIM_CU_STREAM(3020, cuMemsetD32Async, (CUdeviceptr start, unsigned value, size_t count, CUstream stream),
              (start, value, count, stream)) {
    fill(start, value, count, stream);
}

// Managed memory here is resident from its allocation to its end: hints are accepted and change nothing. (Prefetching
// to the host does not raise `free` on the real card either: docs/results/driver.md.)
static void managed_range(CUdeviceptr start, uint64_t bytes) {
    const Allocation *allocation = allocation_around(start);
    const bool managed = allocation && allocation->kind == Allocation::Kind::managed;
    const bool inside = managed && bytes && bytes <= allocation->start + allocation->bytes - start;
    if (!inside) throw CUDA_ERROR_INVALID_VALUE;
}

SIM_CU_STREAM(12020, cuMemPrefetchAsync_v2,
              (CUdeviceptr start, size_t bytes, CUmemLocation location, unsigned flags, CUstream handle),
              (start, bytes, location, flags, handle)) {
    find_stream(handle);
    managed_range(start, bytes);
}

SIM_CU(12020, cuMemAdvise_v2, (CUdeviceptr start, size_t bytes, CUmem_advise advice, CUmemLocation location),
       (start, bytes, advice, location)) {
    managed_range(start, bytes);
}

}  // namespace curb::sim
