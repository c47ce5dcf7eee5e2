// Stream-ordered memory. curb charges the bytes that the pool has reserved on the device, not the bytes requested.

#include <optional>

#include "admission.hpp"
#include "captures.hpp"
#include "free_by_pointer.hpp"
#include "limits.hpp"
#include "policy/values/granule.hpp"
#include "pools.hpp"
#include "trace.hpp"

namespace curb::shim {
namespace {

// The driver's functions for one kind of default stream.
struct StreamCalls {
    decltype(Driver::cuStreamGetDevice) Driver::*stream_device;
    decltype(Driver::cuStreamIsCapturing) Driver::*is_capturing;
    decltype(Driver::cuMemFreeAsync) Driver::*free;
};
constexpr StreamCalls kLegacy{&Driver::cuStreamGetDevice, &Driver::cuStreamIsCapturing, &Driver::cuMemFreeAsync};
constexpr StreamCalls kPerThread{&Driver::cuStreamGetDevice_ptsz, &Driver::cuStreamIsCapturing_ptsz,
                                 &Driver::cuMemFreeAsync_ptsz};

// Returns the device whose pool serves this stream. Drivers before 12.8 have no query, so we assume the current device.
// Wrong if the stream belongs to another device's context.
Device *query_device(const StreamCalls &calls, CUstream stream) noexcept {
    CUdevice device = -1;
    const auto ask = [&] { return (driver().*calls.stream_device)(stream, &device); };
    if (ask_twice(ask) == CUDA_SUCCESS) return devices::find(device);
    return devices::current();
}

// As query_device(), without a driver call in a process with one device, as most are.
Device *device_of(const StreamCalls &calls, CUstream stream) noexcept {
    return devices::count() == 1 ? &devices::at(0) : query_device(calls, stream);
}

// True if the stream is being captured: an allocation is then a node of the graph and takes memory at its launch. If
// the driver does not answer, assume a capture, because other queries could break it.
bool capturing(const StreamCalls &calls, CUstream stream) noexcept {
    return captures::any() && captures::capturing(driver().*calls.is_capturing, stream).value_or(true);
}

// Tries to serve a request that the limits refuse from memory that the pool has reserved but does not use. If the pool
// grows all the same, because the memory is fragmented or another stream still uses it, frees the allocation again.
template <class Call>
CUresult allocate_from_idle(const StreamCalls &calls, pools::Pool &pool, CUdeviceptr *pointer, Bytes bytes,
                            CUstream stream, Call call) {
    // During a capture nothing is synchronised, so the pool keeps the growth of an undone allocation. So one such
    // growth may exceed the cap, and then no more.
    if (captures::any() && limits::exceeds_cap(*pool.device)) return CUDA_ERROR_OUT_OF_MEMORY;
    const pools::Claim claim(pool, bytes);
    if (!claim) return CUDA_ERROR_OUT_OF_MEMORY;
    const Ledger::Operation operation(&pool.device->ledger);
    const Bytes charged_before = pool.charged.load(std::memory_order_acquire);
    const CUresult result = call();
    if (result != CUDA_SUCCESS) return result;
    const Bytes taken = pools::raise(pool);
    const bool grew = pool.charged.load(std::memory_order_acquire) > charged_before;
    if (!grew || !limits::exceeds_grantable(*pool.device)) {
        pools::note_block(pool, *pointer);
        trace::allocated(*pool.device, pool.kind, *pointer, bytes, taken);
        return CUDA_SUCCESS;
    }
    trace::books(*pool.device, pool.kind, static_cast<std::int64_t>(taken));
    (driver().*calls.free)(*pointer, stream);
    *pointer = 0;
    return CUDA_ERROR_OUT_OF_MEMORY;
}

template <class Call>
CUresult allocate(const StreamCalls &calls, pools::Pool &pool, CUdeviceptr *pointer, Bytes bytes, CUstream stream,
                  Call call) {
    Device &device = *pool.device;
    const Bytes worst = policy::round_up(bytes, policy::kPoolUnit);
    const auto record = [&](Charge &charge) {
        const Bytes taken = pools::raise(pool);
        charge.keep(0);  // raise() has charged the pool; credit the reservation
        pool.places.note(*pointer, bytes);
        admission::reserve_ahead(pool);
        pools::note_block(pool, *pointer);
        trace::allocated(device, pool.kind, *pointer, bytes, taken);
        return CUDA_SUCCESS;
    };
    const bool reserved = admission::reserve_now(device, pool.kind, worst);
    if (!reserved) {
        // For an invalid stream, or without a current context, return the driver's own error.
        if (!query_device(calls, stream)) return call();
        const CUresult result = allocate_from_idle(calls, pool, pointer, bytes, stream, call);
        if (result != CUDA_ERROR_OUT_OF_MEMORY) return result;
    }
    const Request request(device, pool.kind, bytes, worst, caller_match::Way::none, Reuse::none());
    return charged(request, call, record, reserved);
}

// Serves a request from a pool for which bytes are reserved ahead, without checking the limits. Reads the pool's size
// only if the memory lies where the pool had none before. Then asks `served_by()` which pool it came from: a library
// may have set the device's pool without curb's knowledge. nullopt if there are no such bytes, or the driver is out of
// memory.
template <class Call, class ServedBy>
std::optional<CUresult> allocate_ahead(pools::Pool &pool, CUdeviceptr *pointer, Bytes bytes, Call call,
                                       ServedBy served_by) {
    if (bytes > policy::kPoolUnit || !pool.keeps.load(std::memory_order_relaxed)) return std::nullopt;
    Device &device = *pool.device;
    if (!device.ledger.ahead().offers()) return std::nullopt;
    activity::note();
    {
        const pools::Ahead ahead(pool);
        if (!ahead) return std::nullopt;
        const CUresult result = call();
        if (result == CUDA_ERROR_OUT_OF_MEMORY) return std::nullopt;
        if (result != CUDA_SUCCESS) return result;
    }
    if (pool.places.has(*pointer, bytes)) [[likely]] {
        trace::allocated(device, pool.kind, *pointer, bytes, 0);
        return CUDA_SUCCESS;
    }
    pools::Pool *from = served_by();
    if (!from || !from->device) return CUDA_SUCCESS;
    const Ledger::Operation operation(&from->device->ledger);
    const Bytes taken = pools::raise(*from);
    from->places.note(*pointer, bytes);
    pools::note_block(*from, *pointer);
    trace::allocated(*from->device, from->kind, *pointer, bytes, taken);
    return CUDA_SUCCESS;
}

// Asks the driver for the device's current pool. Null if the driver fails, or if host memory is exhausted. `answer`:
// the driver's result.
pools::Pool *query_current(Device &device, CUresult &answer) noexcept {
    const std::uint64_t version = pools::current_version();
    CUmemoryPool handle = nullptr;
    answer = ask_twice([&] { return driver().cuDeviceGetMemPool(&handle, device.ordinal); });
    if (answer != CUDA_SUCCESS) return nullptr;
    // The program may have set a pool of another device, or of the host, as the device's current pool.
    pools::Pool *pool = pools::find(handle, &device);
    pools::note_current(device, pool, version);
    return pool;
}

template <class Call>
CUresult allocate_async(const StreamCalls &calls, CUdeviceptr *pointer, Bytes bytes, CUstream stream, Call call) {
    // Checked first: querying the device of a capturing stream would break the capture (measured on an H200).
    if (!pointer || !bytes || !process::active() || capturing(calls, stream)) return call();
    Device *device = device_of(calls, stream);
    if (!device) return call();
    CUresult answer = CUDA_SUCCESS;
    if (pools::Pool *last = pools::current_on(*device))
        if (const auto result =
                allocate_ahead(*last, pointer, bytes, call, [&] { return query_current(*device, answer); }))
            return *result;
    pools::Pool *pool = query_current(*device, answer);
    if (answer != CUDA_SUCCESS) {
        // If the driver cannot serve the call, return its own error: a destructor may call a driver that has shut down.
        const bool could_serve = query_device(calls, stream) != nullptr;
        return could_serve && device->limited.load(std::memory_order_relaxed) ? CUDA_ERROR_OUT_OF_MEMORY : call();
    }
    if (!pool) return CUDA_ERROR_OUT_OF_MEMORY;
    return pool->device ? allocate(calls, *pool, pointer, bytes, stream, call) : call();
}

template <class Call>
CUresult allocate_from_pool(const StreamCalls &calls, CUdeviceptr *pointer, Bytes bytes, CUmemoryPool handle,
                            CUstream stream, Call call) {
    if (!pointer || !bytes || !handle || !process::active() || capturing(calls, stream)) return call();
    Device *device = device_of(calls, stream);
    if (!device) return call();
    pools::Pool *pool = pools::find(handle, device);
    if (!pool) return CUDA_ERROR_OUT_OF_MEMORY;
    if (const auto result = allocate_ahead(*pool, pointer, bytes, call, [&] { return pool; })) return *result;
    return pool->device ? allocate(calls, *pool, pointer, bytes, stream, call) : call();
}

}  // namespace
}  // namespace curb::shim

using namespace curb::shim;

CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream stream) {
    return allocate_async(kLegacy, pointer, bytes, stream,
                          [&] { return driver().cuMemAllocAsync(pointer, bytes, stream); });
}
CUresult cuMemAllocAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUstream stream) {
    return allocate_async(kPerThread, pointer, bytes, stream,
                          [&] { return driver().cuMemAllocAsync_ptsz(pointer, bytes, stream); });
}
CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream) {
    return allocate_from_pool(kLegacy, pointer, bytes, pool, stream,
                              [&] { return driver().cuMemAllocFromPoolAsync(pointer, bytes, pool, stream); });
}
CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream) {
    return allocate_from_pool(kPerThread, pointer, bytes, pool, stream,
                              [&] { return driver().cuMemAllocFromPoolAsync_ptsz(pointer, bytes, pool, stream); });
}
CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream) {
    return free_by_pointer(
        pointer, [&] { return driver().cuMemFreeAsync(pointer, stream); }, true);
}
CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream) {
    return free_by_pointer(
        pointer, [&] { return driver().cuMemFreeAsync_ptsz(pointer, stream); }, true);
}
