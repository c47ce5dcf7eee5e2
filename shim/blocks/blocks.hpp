// Blocks of cuMemAlloc that curb makes by virtual memory management, so that it can move them: each is one reservation
// of addresses and one handle, in whole granules. Programs see them as memory of cuMemAlloc (answers.hpp).
//
// Thread-safe. All functions call the driver and hold no lock meanwhile. A cancelled thread
// leaves those without noexcept by unwinding out of the driver.
#pragma once

#include <optional>

#include "device/devices.hpp"

namespace curb::shim::blocks {

// As cuMemAlloc on `device`, in the current context; `owner`: the context whose end frees the memory. Makes a block of
// curb's if it can, else calls cuMemAlloc.
CUresult allocate(CUdeviceptr *pointer, Bytes bytes, Device &device, CUcontext owner);
// As cuMemAllocPitch.
struct Rows {
    std::size_t width, height;
    unsigned element;
};
CUresult allocate_pitch(CUdeviceptr *pointer, std::size_t *pitch, const Rows &rows, Device &device, CUcontext owner);
// As cuMemFree, of any memory.
CUresult free(CUdeviceptr pointer);
// True if a block of this process starts here. Calls no driver.
bool is_block(CUdeviceptr pointer) noexcept;

// Frees the blocks of a context that has ended.
void drop_context(CUcontext context);
// Lets work on `user` use the blocks of `device`. False if the driver refuses.
bool let_use(const Device &user, const Device &device);
// Call it when a device has got a context: blocks of the others become usable there.
void has_context(const Device &user);

}  // namespace curb::shim::blocks
