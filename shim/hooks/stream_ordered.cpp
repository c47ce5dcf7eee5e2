// Stream-ordered memory. curb charges the bytes that the pool has reserved on the device, not the bytes requested.

#include <optional>

#include "admission/admission.hpp"
#include "blocks/blocks.hpp"
#include "contexts/captures.hpp"
#include "device/activity.hpp"
#include "hooks/free_by_pointer.hpp"
#include "limits/limits.hpp"
#include "policy/values/granule.hpp"
#include "pools/pools.hpp"
#include "trace/trace.hpp"

namespace curb::shim {
namespace {

// The driver's functions for one kind of default stream.
struct StreamCalls {
    decltype(Driver::cuStreamGetDevice) Driver::*stream_device;
    decltype(Driver::cuStreamIsCapturing) Driver::*is_capturing;
    decltype(Driver::cuMemAllocAsync) Driver::*alloc;
    decltype(Driver::cuMemAllocFromPoolAsync) Driver::*alloc_from_pool;
    decltype(Driver::cuMemFreeAsync) Driver::*free;
};
constexpr StreamCalls kLegacy{&Driver::cuStreamGetDevice, &Driver::cuStreamIsCapturing, &Driver::cuMemAllocAsync,
                              &Driver::cuMemAllocFromPoolAsync, &Driver::cuMemFreeAsync};
constexpr StreamCalls kPerThread{&Driver::cuStreamGetDevice_ptsz, &Driver::cuStreamIsCapturing_ptsz,
                                 &Driver::cuMemAllocAsync_ptsz, &Driver::cuMemAllocFromPoolAsync_ptsz,
                                 &Driver::cuMemFreeAsync_ptsz};

// A request as the program makes it.
struct AsyncRequest {
    const StreamCalls &calls;
    CUdeviceptr *pointer;
    Bytes bytes;
    bool from_pool;  // from the pool `handle`, not from the device's current one
    CUmemoryPool handle;
    CUstream stream;

    [[nodiscard]] CUresult to_driver() const {
        return from_pool ? (driver().*calls.alloc_from_pool)(pointer, bytes, handle, stream)
                         : (driver().*calls.alloc)(pointer, bytes, stream);
    }
};

// Returns the device whose pool serves this stream. Drivers before 12.8 have no query, so we assume the current device.
// Wrong if the stream belongs to another device's context.
[[gnu::noinline]] Device *query_device(const StreamCalls &calls, CUstream stream) noexcept {
    CUdevice device = -1;
    const auto ask = [&] { return (driver().*calls.stream_device)(stream, &device); };
    if (ask_twice(ask) == CUDA_SUCCESS) return devices::find(device);
    return devices::current();
}

// As query_device(), without a driver call in a process with one device, as most are.
inline Device *device_of(const AsyncRequest &request) noexcept {
    return devices::count() == 1 ? &devices::at(0) : query_device(request.calls, request.stream);
}

// True if the stream is being captured: an allocation is then a node of the graph and takes memory at its launch. If
// the driver does not answer, assume a capture, because other queries could break it.
inline bool capturing(const AsyncRequest &request) noexcept {
    return captures::any() && captures::capturing(driver().*request.calls.is_capturing, request.stream).value_or(true);
}

// Tries to serve a request that the limits refuse from memory that the pool has reserved but does not use. If the pool
// grows all the same, because the memory is fragmented or another stream still uses it, frees the allocation again.
CUresult allocate_from_idle(pools::Pool &pool, const AsyncRequest &request, Bytes worst) {
    Device &device = *pool.device;
    const pools::IdleTry idle(pool, request.bytes);
    if (!idle || !admission::reserve_growth(device, pool.kind, worst)) return CUDA_ERROR_OUT_OF_MEMORY;
    Charge charge(device, pool.kind, worst);
    const Bytes charged_before = pool.charged();
    const CUresult result = request.to_driver();
    if (result != CUDA_SUCCESS) return result;
    const Bytes taken = pool.raise();
    charge.keep(0);  // raise() has charged the pool; credit the reservation
    const bool grew = pool.charged() > charged_before;
    if (!grew || !limits::exceeds_grantable(device)) {
        pools::note_block(pool, *request.pointer);
        trace::allocated(device, pool.kind, *request.pointer, request.bytes, taken);
        return CUDA_SUCCESS;
    }
    trace::books(device, pool.kind, static_cast<std::int64_t>(taken));
    (driver().*request.calls.free)(*request.pointer, request.stream);
    *request.pointer = 0;
    return CUDA_ERROR_OUT_OF_MEMORY;
}

// Serves a request from `pool` after checking the limits, and reads the pool's size.
[[gnu::noinline]] CUresult allocate(pools::Pool &pool, const AsyncRequest &request) {
    if (!pool.device) return request.to_driver();
    Device &device = *pool.device;
    const Bytes worst = policy::round_up(request.bytes, policy::kPoolUnit);
    const auto record = [&](Charge &charge) {
        const Bytes taken = pool.raise();
        charge.keep(0);  // raise() has charged the pool; credit the reservation
        admission::reserve_ahead(pool);
        pools::note_block(pool, *request.pointer);
        trace::allocated(device, pool.kind, *request.pointer, request.bytes, taken);
        return CUDA_SUCCESS;
    };
    const bool reserved = admission::reserve_now(device, pool.kind, worst);
    if (!reserved) {
        // For an invalid stream, or without a current context, return the driver's own error.
        if (!query_device(request.calls, request.stream)) return request.to_driver();
        const CUresult result = allocate_from_idle(pool, request, worst);
        if (result != CUDA_ERROR_OUT_OF_MEMORY) return result;
    }
    const Request described(device, pool.kind, request.bytes, worst, caller_match::Way::none, Reuse::none());
    return charged(
        described, [&] { return request.to_driver(); }, record, reserved);
}

// Serves a request from a pool for which bytes are reserved ahead, without checking the limits or reading the pool's
// size. nullopt if there are no such bytes, or the driver is out of memory.
inline std::optional<CUresult> allocate_ahead(pools::Pool &pool, const AsyncRequest &request) {
    if (request.bytes > policy::kPoolUnit) return std::nullopt;
    const pools::Ahead ahead(pool);
    if (!ahead) return std::nullopt;
    activity::note();
    const CUresult result = request.to_driver();
    if (result == CUDA_ERROR_OUT_OF_MEMORY) return std::nullopt;
    if (result == CUDA_SUCCESS) trace::allocated(*pool.device, pool.kind, *request.pointer, request.bytes, 0);
    return result;
}

[[gnu::noinline]] CUresult allocate_from_current(Device &device, const AsyncRequest &request) {
    CUresult answer = CUDA_SUCCESS;
    pools::Pool *pool = pools::ask_current(device, answer);
    if (answer != CUDA_SUCCESS) {
        // If the driver cannot serve the call, return its own error: a destructor may call a driver that has shut down.
        const bool could_serve = query_device(request.calls, request.stream) != nullptr;
        return could_serve && device.limited ? CUDA_ERROR_OUT_OF_MEMORY : request.to_driver();
    }
    return pool ? allocate(*pool, request) : CUDA_ERROR_OUT_OF_MEMORY;
}

inline CUresult allocate_async(const AsyncRequest &request) {
    // Checked first: querying the device of a capturing stream would break the capture (measured on an H200).
    if (!request.pointer || !request.bytes || !process::active() || capturing(request)) return request.to_driver();
    Device *device = device_of(request);
    if (!device) return request.to_driver();
    if (pools::Pool *last = pools::current_on(*device))
        if (const auto result = allocate_ahead(*last, request)) return *result;
    return allocate_from_current(*device, request);
}

inline CUresult allocate_from_pool(const AsyncRequest &request) {
    if (!request.pointer || !request.bytes || !request.handle || !process::active() || capturing(request))
        return request.to_driver();
    Device *device = device_of(request);
    if (!device) return request.to_driver();
    pools::Pool *pool = pools::find(request.handle, device);
    if (!pool) return CUDA_ERROR_OUT_OF_MEMORY;
    if (const auto result = allocate_ahead(*pool, request)) return *result;
    return allocate(*pool, request);
}

// A block of curb's is unmapped at once, so its free waits for the stream here. A graph cannot free such memory, as the
// driver says.
template <auto Free, auto Synchronise, auto IsCapturing>
CUresult free_in_stream(CUdeviceptr pointer, CUstream stream) {
    const auto is_captured = [=] {
        return captures::any() && captures::capturing(driver().*IsCapturing, stream).value_or(true);
    };
    if (!blocks::is_block(pointer) || is_captured())
        return free_by_pointer(pointer, to_driver<Free>(pointer, stream), true);
    return free_by_pointer(pointer, [=] {
        const RelaxedCapture relaxed;  // the wait and the free must not end another stream's capture
        const CUresult waited = (driver().*Synchronise)(stream);
        return waited == CUDA_SUCCESS ? blocks::free(pointer) : waited;
    });
}

}  // namespace
}  // namespace curb::shim

using namespace curb::shim;

CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream stream) {
    return allocate_async({kLegacy, pointer, bytes, false, nullptr, stream});
}
CUresult cuMemAllocAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUstream stream) {
    return allocate_async({kPerThread, pointer, bytes, false, nullptr, stream});
}
CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream) {
    return allocate_from_pool({kLegacy, pointer, bytes, true, pool, stream});
}
CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream) {
    return allocate_from_pool({kPerThread, pointer, bytes, true, pool, stream});
}
CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream) {
    return free_in_stream<&Driver::cuMemFreeAsync, &Driver::cuStreamSynchronize, &Driver::cuStreamIsCapturing>(pointer,
                                                                                                               stream);
}
CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream) {
    return free_in_stream<&Driver::cuMemFreeAsync_ptsz, &Driver::cuStreamSynchronize_ptsz,
                          &Driver::cuStreamIsCapturing_ptsz>(pointer, stream);
}
