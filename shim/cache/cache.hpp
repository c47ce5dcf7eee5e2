// The cache of freed blocks. A request of exactly the same size in the same context gets a kept block without a driver
// call.
//
// As cudaFree does, curb waits for the device's work before it keeps a block. A kept block stays charged;
// Device::kept counts the bytes that freeing all kept blocks would return. Thread-safe. Keeps errno. Holds no lock
// across a driver call.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "device/devices.hpp"

namespace curb::shim::cache {

namespace detail {
inline constinit std::atomic<bool> work_since_check{false};
CUdeviceptr take(Device &device, CUcontext context, Bytes bytes) noexcept;
bool free_kept(CUdeviceptr pointer) noexcept;
Bytes free_kept(Device &device, Bytes wanted) noexcept;
}  // namespace detail

// True if blocks are kept on any device.
inline bool any_kept() noexcept {
    for (const Device &device : devices::all())
        if (device.kept.blocks != 0) return true;
    return false;
}

// Hands out a kept block of `context`, the calling thread's owner_of_memory(), and records it as the program's. Returns
// 0 if there is none or none may be reused now. Costs one load if the device has no kept blocks.
inline CUdeviceptr take(Device &device, CUcontext context, Bytes bytes) noexcept {
    return device.kept.blocks == 0 ? 0 : detail::take(device, context, bytes);
}

// Call it when the program frees this pointer. Waits for the device's work, then keeps the block. False if the block
// may not be kept: the caller frees it. Costs two loads if the policy has no cache.
bool keep(CUdeviceptr pointer) noexcept;

// Frees the kept block at this address, because the program frees it a second time. False if none is kept there.
inline bool free_kept(CUdeviceptr pointer) noexcept { return any_kept() && detail::free_kept(pointer); }
// Frees kept blocks of the device, oldest first, until `wanted` bytes came back. Returns the bytes that came back.
inline Bytes free_kept(Device &device, Bytes wanted = policy::kUnbounded) noexcept {
    return device.kept.blocks == 0 ? 0 : detail::free_kept(device, wanted);
}

// Calls the driver. If the current device is full, frees its kept blocks and calls once more.
template <class Call>
CUresult with_room(Call call) {
    const CUresult result = call();
    if (result != CUDA_ERROR_OUT_OF_MEMORY || !any_kept()) return result;
    Device *device = devices::current();
    return device && free_kept(*device) != 0 ? call() : result;
}

// Notes that the program launched work, which may fail: take() then checks the context first. Usually one load.
inline void note_work() noexcept {
    if (!detail::work_since_check) detail::work_since_check = true;
}

// Forgets and credits the kept blocks of a destroyed context. Call it before other records of the context are dropped.
void drop_context(CUcontext context) noexcept;

// Marks the block at this address as shared with another process (`exports`) or device: it is never kept. Frees it if
// it is kept.
void share(CUdeviceptr address, bool exports) noexcept;

// Frees the blocks that a new policy no longer allows. Calls the driver.
void enforce() noexcept;

// Frees the blocks that were unused for as long as the policy's cache.idle. Returns the milliseconds until the next one
// is due. nullopt if nothing is kept; then `wake` is called once something is.
std::optional<std::uint64_t> sweep() noexcept;
// Sets the callback that wakes the caller of sweep(); called at once if something is kept. It runs within the program's
// free, so it must not block. It runs once until sweep() finds nothing, so that an alloc/free loop does not repeat it.
void on_first_kept(void (*wake)()) noexcept;

}  // namespace curb::shim::cache
