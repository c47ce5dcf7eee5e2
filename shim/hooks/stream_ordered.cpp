// Stream-ordered memory: charged by what the pool has reserved on the device, not by what the program asked for.

#include "admission.hpp"
#include "allocations.hpp"
#include "captures.hpp"
#include "free_by_pointer.hpp"
#include "limits.hpp"
#include "policy/granule.hpp"
#include "pools.hpp"
#include "trace.hpp"

namespace curb::shim {
namespace {

// The functions of one form of the default stream.
struct Form {
    decltype(Driver::cuStreamGetDevice) Driver::*stream_device;
    decltype(Driver::cuStreamIsCapturing) Driver::*is_capturing;
    decltype(Driver::cuMemFreeAsync) Driver::*free;
};
constexpr Form kLegacy{&Driver::cuStreamGetDevice, &Driver::cuStreamIsCapturing, &Driver::cuMemFreeAsync};
constexpr Form kPerThread{&Driver::cuStreamGetDevice_ptsz, &Driver::cuStreamIsCapturing_ptsz,
                          &Driver::cuMemFreeAsync_ptsz};

// The device whose pool serves this stream. Drivers before 12.8 cannot tell; there the current device is taken, which a
// stream of another device's context would belie.
Device *told_device_of(const Form &form, CUstream stream) noexcept {
    CUdevice device = -1;
    const auto ask = [&] { return (driver().*form.stream_device)(stream, &device); };
    if (ask_twice(ask) == CUDA_SUCCESS) return devices::find(device);
    return devices::current();
}

// Where there is one device it need not be asked for, and most processes see one.
Device *device_of(const Form &form, CUstream stream) noexcept {
    return devices::count() == 1 ? &devices::at(0) : told_device_of(form, stream);
}

// While capturing, an allocation is a node of the graph: it takes memory when the graph is launched. A stream of which
// the driver does not tell may be capturing, and anything else that it is asked then could break that.
bool capturing(const Form &form, CUstream stream) noexcept {
    return captures::any() && captures::capturing(driver().*form.is_capturing, stream).value_or(true);
}

// No room for the pool to grow, but it has as much reserved and unused. It may serve the request from that, or find it
// in pieces (or still in use by another stream) and grow all the same: then the allocation is undone.
template <class Call>
CUresult allocate_from_idle(const Form &form, pools::Pool &pool, CUdeviceptr *pointer, Bytes bytes, CUstream stream,
                            Call call) {
    // During a capture nothing is synchronised, so the pool keeps what an undone allocation has made it grow by: then
    // one such growth may pass the cap, and no other comes on top.
    if (captures::any() && limits::is_over_cap(*pool.device)) return CUDA_ERROR_OUT_OF_MEMORY;
    const pools::Claim claim(pool, bytes);
    if (!claim) return CUDA_ERROR_OUT_OF_MEMORY;
    const Ledger::Operation operation(&pool.device->ledger);
    const Bytes charged_before = pool.charged.load(std::memory_order_acquire);
    const CUresult result = call();
    if (result != CUDA_SUCCESS) return result;
    const Bytes taken = pools::raise(pool);
    const bool grew = pool.charged.load(std::memory_order_acquire) > charged_before;
    if (!grew || !limits::is_over(*pool.device)) {
        pools::note_block(pool, *pointer);
        trace::allocated(*pool.device, pool.kind, *pointer, bytes, taken);
        return CUDA_SUCCESS;
    }
    trace::books(*pool.device, pool.kind, static_cast<std::int64_t>(taken));
    (driver().*form.free)(*pointer, stream);
    *pointer = 0;
    return CUDA_ERROR_OUT_OF_MEMORY;
}

template <class Call>
CUresult allocate(const Form &form, pools::Pool &pool, CUdeviceptr *pointer, Bytes bytes, CUstream stream, Call call) {
    Device &device = *pool.device;
    const Bytes worst = policy::round_up(bytes, policy::kPoolUnit);
    const auto record = [&](Charge &charge) {
        const Bytes taken = pools::raise(pool);
        charge.keep(0);  // what was set aside for it goes back
        pools::note_block(pool, *pointer);
        trace::allocated(device, pool.kind, *pointer, bytes, taken);
        return CUDA_SUCCESS;
    };
    const bool reserved = admission::reserve_now(device, pool.kind, worst);
    if (!reserved) {
        // A stream that is none, or no current context: the driver's own error comes before ours.
        if (!told_device_of(form, stream)) return call();
        const CUresult result = allocate_from_idle(form, pool, pointer, bytes, stream, call);
        if (result != CUDA_ERROR_OUT_OF_MEMORY) return result;
    }
    return charged(device, pool.kind, worst, call, record, reserved);
}

template <class Call>
CUresult allocate_async(const Form &form, CUdeviceptr *pointer, Bytes bytes, CUstream stream, Call call) {
    // First of all: asking a capturing stream for its device would break the capture (measured on an H200).
    if (!pointer || !bytes || !process::active() || capturing(form, stream)) return call();
    Device *device = device_of(form, stream);
    CUmemoryPool handle = nullptr;
    if (!device) return call();
    if (ask_twice([&] { return driver().cuDeviceGetMemPool(&handle, device->ordinal); }) != CUDA_SUCCESS) {
        // The driver's own error comes before ours, as that of one that has shut down, which a destructor may call.
        const bool could_serve = told_device_of(form, stream) != nullptr;
        return could_serve && device->limited.load(std::memory_order_relaxed) ? CUDA_ERROR_OUT_OF_MEMORY : call();
    }
    // The current pool of a device may be one of the program's own, on another device or on the host.
    pools::Pool *pool = pools::find(handle, device);
    if (!pool) return CUDA_ERROR_OUT_OF_MEMORY;
    return pool->device ? allocate(form, *pool, pointer, bytes, stream, call) : call();
}

template <class Call>
CUresult allocate_from_pool(const Form &form, CUdeviceptr *pointer, Bytes bytes, CUmemoryPool handle, CUstream stream,
                            Call call) {
    if (!pointer || !bytes || !handle || !process::active() || capturing(form, stream)) return call();
    Device *device = device_of(form, stream);
    if (!device) return call();
    pools::Pool *pool = pools::find(handle, device);
    if (!pool) return CUDA_ERROR_OUT_OF_MEMORY;
    return pool->device ? allocate(form, *pool, pointer, bytes, stream, call) : call();
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
