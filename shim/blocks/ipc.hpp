// CUDA IPC of blocks. A handle is curb's: it names the process that made it, the block, and a secret of that process.
// A process that opens it under curb asks the first one, by its control socket, for a descriptor of the memory.
// So memory is exported only once another process opens it, and the process knows who has it open: until then, and when
// all have closed it or have ended, the block moves as any other.
//
// Thread-safe. A cancelled thread leaves the functions without noexcept by unwinding out of the driver.
#pragma once

#include <optional>
#include <vector>

#include "accounting/blocks.hpp"
#include "control/memory.hpp"
#include "driver/driver.hpp"

namespace curb::shim::blocks {

// Where the control sockets of processes are. Before it is called, no handle can be opened.
void use(const control::Places &places) noexcept;

// True if the handle is curb's.
bool is_curbs(const CUipcMemHandle &handle) noexcept;

// As the driver's functions. nullopt: the address is in no block of curb's, or curb has not opened it.
std::optional<CUresult> get_ipc_handle(CUipcMemHandle *handle, CUdeviceptr address) noexcept;
std::optional<CUresult> close_ipc_handle(CUdeviceptr address);
// As cuIpcOpenMemHandle of a handle of curb's. Waits while the process that made it is out of its GPUs.
CUresult open_ipc_handle(CUdeviceptr *address, const CUipcMemHandle &handle);

// Tell the processes that made these blocks that they are no longer open here. note_closed() adds one to the list.
void note_closed(std::vector<vmm::Import> &list, const vmm::Import &import) noexcept;
void tell_closed(const std::vector<vmm::Import> &list) noexcept;

// Serve the requests of other processes. lend() waits at the gate, and calls the driver. May throw std::bad_alloc.
control::MemoryAnswer lend(const control::MemoryRequest &asked, const control::ProcessName &by);
control::Reply take_back(const control::MemoryRequest &asked);

}  // namespace curb::shim::blocks
