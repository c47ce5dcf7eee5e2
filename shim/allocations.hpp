// Which pointers of plain and managed memory this process has, what each was charged and to which device.
//
// Thread-safe: shards with a lock each, none held while the driver is called.
#pragma once

#include <cstdint>
#include <optional>

#include "cache.hpp"
#include "devices.hpp"
#include "graphs.hpp"
#include "process.hpp"
#include "room.hpp"
#include "trace.hpp"

namespace curb::shim::allocations {

// The driver backs plain memory by granules of 2 MiB. Blocks of up to 1 MiB share them; larger ones do not (measured on
// H100 and H200: docs/results/driver.md).
inline constexpr Bytes kGranule = 2 * policy::MiB;
inline constexpr Bytes kLargestShared = 1 * policy::MiB;

// `bytes` in whole granules; the largest multiple there is where that would overflow.
constexpr Bytes round_up(Bytes bytes, Bytes granule) noexcept {
    return bytes > ~Bytes{0} - (granule - 1) ? ~Bytes{0} - (granule - 1) : (bytes + granule - 1) / granule * granule;
}

struct Allocation {
    Device *device = nullptr;
    CUcontext context = nullptr;  // destroying it frees the memory
    Bytes bytes = 0;
    Kind kind = Kind::plain;
    bool reusable = false;  // by a request for exactly as many bytes: cuMemAlloc gave it
    bool shared = false;    // others than this process's kernels may reach it
    friend bool operator==(const Allocation &, const Allocation &) = default;
};

// Records what the driver just handed out and returns how many bytes of the device it takes that were not taken before.
// None: no host memory for the record, and the allocation must be undone.
std::optional<Bytes> add(CUdeviceptr pointer, const Allocation &allocation) noexcept;

// What is known of a pointer.
std::optional<Allocation> find(CUdeviceptr pointer) noexcept;

// Forgets the pointer before the driver frees it (afterwards another thread may get the same one). None: not known.
std::optional<Allocation> forget(CUdeviceptr pointer) noexcept;
// Notes that others may reach this memory (another process, another device of the machine). Unknown pointers pass.
void share(CUdeviceptr pointer) noexcept;

// The block is kept for reuse, or no longer: it is handed out again, or about to be freed. Device::cached follows; the
// charge stays as it is.
void keep(CUdeviceptr pointer, const Allocation &allocation) noexcept;
void use_again(CUdeviceptr pointer, const Allocation &allocation) noexcept;

// The driver refused to free it after all, or it is handed out again. False: no host memory for the record.
bool remember(CUdeviceptr pointer, const Allocation &allocation) noexcept;
// Credits the device once the driver has freed it, and returns by how much.
// `stays`: until the device says otherwise, for the driver gives it back at a synchronisation.
Bytes credit(CUdeviceptr pointer, const Allocation &allocation, bool stays = false) noexcept;

// The context is gone, and its memory with it.
void drop_context(CUcontext context) noexcept;

}  // namespace curb::shim::allocations

namespace curb::shim {

// Forget the pointer, call the driver, then credit the device that was charged. Pointers that are not known (of pools,
// imported, foreign, wrong) go to the driver, whose answer is returned.
// `later`: the memory comes back at a synchronisation of a stream, which curb does not see, so the device is asked.
template <class Call>
CUresult free_by_pointer(CUdeviceptr pointer, Call call, bool later = false) {
    if (!process::active()) return call();
    const auto allocation = allocations::forget(pointer);
    if (!allocation) {
        cache::give_up(pointer);  // freed a second time: the first is made good, so that the driver finds what it would
        trace::freed_to_pool(pointer);
        const CUresult result = call();
        if (result == CUDA_SUCCESS) {
            idle::note_use();
            graphs::freed(pointer);
            room::changed();  // of a pool, which a trim can now give back
        }
        return result;
    }
    const Ledger::Operation operation(&allocation->device->ledger);
    // Where nobody tells what the device has, nobody would tell when it has come back.
    const bool stays = later && !allocation->device->blind.load(std::memory_order_relaxed);
    const std::uint64_t moment = trace::moment();
    const CUresult result = call();
    if (result == CUDA_SUCCESS) {
        const Bytes credit = allocations::credit(pointer, *allocation, stays);
        trace::freed(*allocation->device, allocation->kind, pointer, allocation->bytes, credit, moment);
        if (stays) trace::books(*allocation->device, Kind::overhead, static_cast<std::int64_t>(credit));
    } else {
        allocations::remember(pointer, *allocation);
    }
    if (later) devices::look_for_returned_soon(*allocation->device);
    return result;
}

}  // namespace curb::shim
