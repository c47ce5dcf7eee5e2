// Freed blocks that are kept for reuse (the policy's cache): a request of exactly the same size in the same context
// gets one of them without a call of the driver.
//
// cudaFree keeps its meaning: before a block is kept, all work of its device has ended, as the driver itself sees to
// it. A kept block stays charged as what it was; Device::cached says how much would come back without the cache.
// Everything here is thread-safe and leaves errno; no lock is held while the driver is called.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "devices.hpp"

namespace curb::shim::cache {

namespace detail {
extern constinit std::atomic<std::size_t> kept;  // blocks on all devices
inline constinit std::atomic<bool> worked{false};
CUdeviceptr take(Device &device, Bytes bytes) noexcept;
bool give_up(CUdeviceptr pointer) noexcept;
Bytes give_up(Device &device, Bytes wanted) noexcept;
}  // namespace detail

// A kept block of the calling thread's context, in the books as the program's own again; 0: there is none, or it may
// not be used now. One load where nothing is kept.
inline CUdeviceptr take(Device &device, Bytes bytes) noexcept {
    return device.kept.load(std::memory_order_relaxed) == 0 ? 0 : detail::take(device, bytes);
}

// The program frees this pointer: waits for the device and keeps the block, if it may be kept. False: nothing was done
// that matters; it is the driver's to free. Two loads where the policy keeps none.
bool keep(CUdeviceptr pointer) noexcept;

// Frees the block at this address, if it is kept: the program uses it again, which it must not. True: it was kept.
inline bool give_up(CUdeviceptr pointer) noexcept {
    return detail::kept.load(std::memory_order_relaxed) != 0 && detail::give_up(pointer);
}
// Frees kept blocks of the device, the oldest first, until `wanted` bytes of it came back; returns how many did.
inline Bytes give_up(Device &device, Bytes wanted = policy::kUnbounded) noexcept {
    return device.kept.load(std::memory_order_relaxed) == 0 ? 0 : detail::give_up(device, wanted);
}

// A call of the driver that may find the current device full: then it is made once more without the blocks kept there.
template <class Call>
CUresult with_room(Call call) {
    const CUresult result = call();
    if (result != CUDA_ERROR_OUT_OF_MEMORY || detail::kept.load(std::memory_order_relaxed) == 0) return result;
    Device *device = devices::current();
    return device && give_up(*device) != 0 ? call() : result;
}

// The program has given the device work, which may fail: the driver is asked before the next block is handed out. After
// each launch: a load, mostly.
inline void note_work() noexcept {
    if (!detail::worked.load(std::memory_order_relaxed)) detail::worked.store(true, std::memory_order_relaxed);
}

// The context is gone, and its kept blocks with it. Before anything else forgets the context.
void drop_context(CUcontext context) noexcept;

// The memory around this address is about to be within the reach of others (another process, another device of the
// machine): it is never kept. The block is given up if it is kept now.
void share(CUdeviceptr address) noexcept;

// A new policy is in force: gives up what it does not allow.
void enforce() noexcept;

// Gives up the blocks that have lain unused for as long as the policy lets them. In how many milliseconds the next one
// is due; none: nothing is kept, and whoever calls this is woken when that changes.
std::optional<std::uint64_t> sweep() noexcept;
// What wakes the caller of sweep(), within a free of the program's: it does not block. It is called at once if
// something is kept. An alloc and free loop does not call it again and again: once, until sweep() has found nothing.
void on_first_kept(void (*wake)()) noexcept;

}  // namespace curb::shim::cache
