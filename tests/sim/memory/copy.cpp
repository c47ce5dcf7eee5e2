// Copies and fills. They really move bytes, so that tests can check that data survived.
//
// Rule: an address inside the device address space must lie in live, accessible memory for the whole length; any other
// address is taken to be the program's own, as under unified addressing.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "arrays.hpp"
#include "driver.hpp"
#include "host_memory.hpp"
#include "latency.hpp"
#include "running.hpp"
#include "sim.h"

namespace curb::sim {

namespace {

constinit std::atomic<bool> held_copies = false;

CUdeviceptr address(const void *pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

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

// One side of a copy: rows of linear memory, or an array, whose contents are not kept.
struct Operand {
    CUdeviceptr start = 0;
    Side side = Side::any;
    uint64_t pitch = 0, slice = 0;  // from a row to the next, and from a layer to the next
    bool is_array = false;
};
struct Extent {
    uint64_t width = 0, height = 1, depth = 1;
};

bool reachable(const Operand &operand, const Extent &extent) {
    const uint64_t last = (extent.depth - 1) * operand.slice + (extent.height - 1) * operand.pitch;
    return operand.is_array || reachable(operand.start, last + extent.width, operand.side);
}

bool is_pageable(CUdeviceptr address) {
    CUdeviceptr start = 0;
    uint64_t bytes = 0;
    return !driver().addresses.contains(address) && !is_pinned_host(address, &start, &bytes);
}

// Copies in the caller's thread and in pieces, as the driver does from and to pageable memory.
void copy_in_pieces(CUdeviceptr to, Side to_side, CUdeviceptr from, Side from_side, uint64_t bytes) {
    constexpr uint64_t kPiece = 4 * kMiB;
    for (uint64_t at = 0; at < bytes; at += kPiece) {
        const uint64_t size = std::min(kPiece, bytes - at);
        if (!reachable(to + at, size, to_side) || !reachable(from + at, size, from_side))
            throw CUDA_ERROR_ILLEGAL_ADDRESS;
        std::memmove(host(to + at), host(from + at), size);
        const auto time = time_of_copy(to_side == Side::device ? Bus::pageable_in : Bus::pageable_out, size);
        if (time.count() != 0) run_unlocked([=] { std::this_thread::sleep_for(time); });
        if (at + size < bytes) run_unlocked([] { held_copies.wait(true); });
    }
}

// During a capture the memory need not be live yet, so the addresses are checked again when the graph runs.
void copy(const Operand &to, const Operand &from, const Extent &extent, CUstream handle) {
    Stream *stream = find_stream(handle);
    if (extent.width == 0 || extent.height == 0 || extent.depth == 0) return;
    const auto valid = [=] { return reachable(to, extent) && reachable(from, extent); };
    if (!stream->capture && !valid()) throw CUDA_ERROR_INVALID_VALUE;
    if (to.is_array || from.is_array) return submit(*stream, CU_GRAPH_NODE_TYPE_MEMCPY, [](Stream &) {});
    const auto each_row = [=](auto move) {
        for (uint64_t z = 0; z < extent.depth; ++z)
            for (uint64_t y = 0; y < extent.height; ++y)
                move(to.start + z * to.slice + y * to.pitch, from.start + z * from.slice + y * from.pitch);
    };
    if (!stream->capture && (is_pageable(to.start) || is_pageable(from.start))) {
        submit(*stream, CU_GRAPH_NODE_TYPE_MEMCPY, [](Stream &) {});
        return each_row([=](CUdeviceptr to_row, CUdeviceptr from_row) {
            copy_in_pieces(to_row, to.side, from_row, from.side, extent.width);
        });
    }
    submit(*stream, CU_GRAPH_NODE_TYPE_MEMCPY, [=](Stream &runs_in) {
        if (!valid()) return;
        each_row([=](CUdeviceptr to_row, CUdeviceptr from_row) {
            std::memmove(host(to_row), host(from_row), extent.width);
        });
        const bool to_host = !driver().addresses.contains(to.start);
        if (to_host != !driver().addresses.contains(from.start))
            begin_copy(runs_in, to_host, extent.width * extent.height * extent.depth);
    });
}
void copy(CUdeviceptr to, Side to_side, CUdeviceptr from, Side from_side, uint64_t bytes, CUstream stream) {
    copy({.start = to, .side = to_side}, {.start = from, .side = from_side}, {.width = bytes}, stream);
}

// Returns an operand of a copy in two or three dimensions.
Operand operand(CUmemorytype type, const void *pointer, CUdeviceptr device, CUarray array, uint64_t pitch,
                uint64_t slice, uint64_t offset, uint64_t row) {
    Operand out{.pitch = pitch, .slice = slice};
    switch (type) {
        case CU_MEMORYTYPE_HOST: out.start = address(pointer); break;
        case CU_MEMORYTYPE_DEVICE: out.start = device, out.side = Side::device; break;
        case CU_MEMORYTYPE_UNIFIED: out.start = device; break;
        case CU_MEMORYTYPE_ARRAY: check_array(array), out.is_array = true; return out;
        default: throw CUDA_ERROR_INVALID_VALUE;
    }
    if (pitch != 0 && pitch < row) throw CUDA_ERROR_INVALID_VALUE;
    out.start += offset;
    return out;
}

void copy(const CUDA_MEMCPY2D *of, CUstream stream) {
    if (!of) throw CUDA_ERROR_INVALID_VALUE;
    copy(operand(of->dstMemoryType, of->dstHost, of->dstDevice, of->dstArray, of->dstPitch, 0,
                 of->dstY * of->dstPitch + of->dstXInBytes, of->dstXInBytes + of->WidthInBytes),
         operand(of->srcMemoryType, of->srcHost, of->srcDevice, of->srcArray, of->srcPitch, 0,
                 of->srcY * of->srcPitch + of->srcXInBytes, of->srcXInBytes + of->WidthInBytes),
         {of->WidthInBytes, of->Height}, stream);
}
template <class Copy3D>  // CUDA_MEMCPY3D or CUDA_MEMCPY3D_PEER
void copy_layers(const Copy3D *of, CUstream stream) {
    if (!of) throw CUDA_ERROR_INVALID_VALUE;
    const uint64_t to_slice = of->dstPitch * of->dstHeight, from_slice = of->srcPitch * of->srcHeight;
    copy(operand(of->dstMemoryType, of->dstHost, of->dstDevice, of->dstArray, of->dstPitch, to_slice,
                 of->dstZ * to_slice + of->dstY * of->dstPitch + of->dstXInBytes, of->dstXInBytes + of->WidthInBytes),
         operand(of->srcMemoryType, of->srcHost, of->srcDevice, of->srcArray, of->srcPitch, from_slice,
                 of->srcZ * from_slice + of->srcY * of->srcPitch + of->srcXInBytes, of->srcXInBytes + of->WidthInBytes),
         {of->WidthInBytes, of->Height, of->Depth}, stream);
}

void copy_with_array(CUarray array, const void *memory, uint64_t bytes, CUstream stream) {
    check_array(array);
    copy({.is_array = true}, {.start = address(memory)}, {.width = bytes}, stream);
}

void copy_batch(const CUdeviceptr *to, const CUdeviceptr *from, const size_t *bytes, size_t count, size_t *failed,
                CUstream stream) {
    if (!to || !from || !bytes || !count) throw CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; ++i) {
        if (failed) *failed = i;
        copy(to[i], Side::any, from[i], Side::any, bytes[i], stream);
    }
    if (failed) *failed = SIZE_MAX;
}

template <class Value>
void fill(CUdeviceptr start, Value value, uint64_t count, CUstream handle) {
    Stream *stream = find_stream(handle);
    if (start % sizeof value || count > kAbsurd) throw CUDA_ERROR_INVALID_VALUE;
    if (!count) return;
    const auto valid = [=] { return reachable(start, count * sizeof value, Side::device); };
    if (!stream->capture && !valid()) throw CUDA_ERROR_INVALID_VALUE;
    submit(*stream, CU_GRAPH_NODE_TYPE_MEMSET, [=](Stream &) {
        if (!valid()) return;
        const uint64_t bytes = count * sizeof value;
        if (value != 0 || !empty(start, bytes)) std::fill_n(static_cast<Value *>(host(start)), count, value);
    });
}

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
static void copy_between(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes,
                         CUstream stream) {
    all<Context>().at(to_context);
    all<Context>().at(from_context);
    copy(to, Side::device, from, Side::device, bytes, stream);
}
SIM_CU_BLOCKING(4000, cuMemcpyPeer,
                (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes),
                (to, to_context, from, from_context, bytes)) {
    copy_between(to, to_context, from, from_context, bytes, nullptr);
}
SIM_CU_STREAM(4000, cuMemcpyPeerAsync,
              (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes,
               CUstream stream),
              (to, to_context, from, from_context, bytes, stream)) {
    copy_between(to, to_context, from, from_context, bytes, stream);
}
SIM_CU_BLOCKING(3020, cuMemcpyHtoA_v2, (CUarray to, size_t at, const void *from, size_t bytes), (to, at, from, bytes)) {
    copy_with_array(to, from, bytes, nullptr);
}
SIM_CU_BLOCKING(3020, cuMemcpyAtoH_v2, (void *to, CUarray from, size_t at, size_t bytes), (to, from, at, bytes)) {
    copy_with_array(from, to, bytes, nullptr);
}
SIM_CU_STREAM(3020, cuMemcpyHtoAAsync_v2, (CUarray to, size_t at, const void *from, size_t bytes, CUstream stream),
              (to, at, from, bytes, stream)) {
    copy_with_array(to, from, bytes, stream);
}
SIM_CU_STREAM(3020, cuMemcpyAtoHAsync_v2, (void *to, CUarray from, size_t at, size_t bytes, CUstream stream),
              (to, from, at, bytes, stream)) {
    copy_with_array(from, to, bytes, stream);
}
SIM_CU_BLOCKING(3020, cuMemcpy2D_v2, (const CUDA_MEMCPY2D *of), (of)) { copy(of, nullptr); }
SIM_CU_BLOCKING(3020, cuMemcpy2DUnaligned_v2, (const CUDA_MEMCPY2D *of), (of)) { copy(of, nullptr); }
SIM_CU_STREAM(3020, cuMemcpy2DAsync_v2, (const CUDA_MEMCPY2D *of, CUstream stream), (of, stream)) { copy(of, stream); }
SIM_CU_BLOCKING(3020, cuMemcpy3D_v2, (const CUDA_MEMCPY3D *of), (of)) { copy_layers(of, nullptr); }
SIM_CU_STREAM(3020, cuMemcpy3DAsync_v2, (const CUDA_MEMCPY3D *of, CUstream stream), (of, stream)) {
    copy_layers(of, stream);
}
SIM_CU_BLOCKING(4000, cuMemcpy3DPeer, (const CUDA_MEMCPY3D_PEER *of), (of)) { copy_layers(of, nullptr); }
SIM_CU_STREAM(4000, cuMemcpy3DPeerAsync, (const CUDA_MEMCPY3D_PEER *of, CUstream stream), (of, stream)) {
    copy_layers(of, stream);
}
SIM_CU_STREAM(12080, cuMemcpyBatchAsync,
              (CUdeviceptr * to, CUdeviceptr *from, size_t *bytes, size_t count, CUmemcpyAttributes *attributes,
               size_t *firsts, size_t kinds, size_t *failed, CUstream stream),
              (to, from, bytes, count, attributes, firsts, kinds, failed, stream)) {
    copy_batch(to, from, bytes, count, failed, stream);
}
SIM_CU_STREAM(13000, cuMemcpyBatchAsync_v2,
              (CUdeviceptr * to, CUdeviceptr *from, size_t *bytes, size_t count, CUmemcpyAttributes *attributes,
               size_t *firsts, size_t kinds, CUstream stream),
              (to, from, bytes, count, attributes, firsts, kinds, stream)) {
    copy_batch(to, from, bytes, count, nullptr, stream);
}
SIM_CU_STREAM(12080, cuMemcpy3DBatchAsync,
              (size_t count, CUDA_MEMCPY3D_BATCH_OP *copies, size_t *failed, unsigned long long flags, CUstream stream),
              (count, copies, failed, flags, stream)) {
    throw CUDA_ERROR_NOT_SUPPORTED;
}
SIM_CU_STREAM(13000, cuMemcpy3DBatchAsync_v2,
              (size_t count, CUDA_MEMCPY3D_BATCH_OP *copies, unsigned long long flags, CUstream stream),
              (count, copies, flags, stream)) {
    throw CUDA_ERROR_NOT_SUPPORTED;
}

SIM_EXPORT void curb_sim_hold_copies(int hold) {
    held_copies = hold != 0;
    held_copies.notify_all();
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
