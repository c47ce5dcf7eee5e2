// How a block is made and ended, for the sources of this folder.
#pragma once

#include <optional>

#include "accounting/blocks.hpp"
#include "driver/driver.hpp"
#include "policy/values/size.hpp"

namespace curb::shim::blocks {

inline CUmemAccessDesc access_for(int ordinal) noexcept {
    return {{CU_MEM_LOCATION_TYPE_DEVICE, ordinal}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
}

// The driver's calls that make a block. The destructor undoes them unless the block is kept: they may fail, or the
// thread may be cancelled in one of them.
struct Making : NoCopy {
    Making(const Driver &driver, Bytes size) noexcept : to(driver), bytes(size) {}
    ~Making() {
        if (is_kept) return;
        if (is_mapped) to.cuMemUnmap(start, bytes);
        if (handle != 0) to.cuMemRelease(handle);
        if (start != 0) to.cuMemAddressFree(start, bytes);
    }

    const Driver &to;
    const Bytes bytes;
    CUdeviceptr start = 0;
    vmm::Handle handle = 0;
    bool is_mapped = false, is_kept = false;

    // `get(&handle)` creates or imports the physical memory.
    template <class Get>
    CUresult run(Get get, const CUmemAccessDesc &access) {
        // As cuMemAlloc places large blocks (measured on an H200).
        constexpr Bytes kLarge = 64 * policy::MiB;
        CUresult result = to.cuMemAddressReserve(&start, bytes, bytes >= kLarge ? kLarge : 0, 0, 0);
        // Without addresses cuMemAlloc may still find some.
        if (result != CUDA_SUCCESS) return result == CUDA_ERROR_OUT_OF_MEMORY ? CUDA_ERROR_NOT_SUPPORTED : result;
        result = get(&handle);
        if (result != CUDA_SUCCESS) return result;
        result = to.cuMemMap(start, bytes, 0, handle, 0);
        if (result != CUDA_SUCCESS) return result;
        is_mapped = true;
        return to.cuMemSetAccess(start, bytes, &access, 1);
    }
};

// Lets the devices but `user` that have a context use the block, since copies between devices need it without peer
// access too. Call it once the block is recorded: a device that gets its first context later finds it there. False if
// the driver refuses.
bool grant_to_others(const Driver &to, const vmm::Block &block, const Device &user);

// Waits for the work of the block's context, as cuMemFree does: unmapping waits for nothing. nullopt: the context
// cannot be used.
std::optional<CUresult> wait_for_work(CUcontext owner);

// Unmaps and releases a block whose record has been taken out. If the driver refuses, the block is mapped as before,
// and the caller puts the record back.
CUresult end(const Driver &to, vmm::BlockRemoval &removal);

}  // namespace curb::shim::blocks
