// Memory that this process shares with others. The driver cannot move such a process out of its GPUs: the others would
// use memory that is gone.
#pragma once

#include "driver/driver.hpp"

namespace curb::shim::shared {

// Records that the program has an IPC handle of its own block at `address`, by which another process may open it.
// Thread-safe, as are the others.
void exported(CUdeviceptr address, const CUipcMemHandle &handle) noexcept;
// Record that the program has opened or closed another process's block. The driver counts how often
// (cuIpcCloseMemHandle).
void opened(CUdeviceptr address, const CUipcMemHandle &handle, CUcontext context) noexcept;
void closed(CUdeviceptr address) noexcept;
// Forgets the blocks that were opened, and the events that were shared, in a destroyed context.
void drop_context(CUcontext context) noexcept;

// The program has imported memory of a graphics library (cuImportExternalMemory), or has destroyed such an import.
void imported_external() noexcept;
void destroyed_external() noexcept;
bool any_external() noexcept;

// Another process may use this event (CUDA IPC), or the program has destroyed it. destroyed_event() costs one load if
// there is none.
void shares_event(CUevent event, CUcontext context) noexcept;
void destroyed_event(CUevent event) noexcept;
bool any_event() noexcept;

// True if other processes may access memory of this one (CUDA IPC, dma-buf, exported handles and pools), or it has such
// memory of others. Takes locks, one after the other, and reads /proc. Does not call the driver. Thread-safe. May throw
// std::bad_alloc.
bool any();

}  // namespace curb::shim::shared
