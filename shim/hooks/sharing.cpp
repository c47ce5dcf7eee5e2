// Memory and events that the program shares: with another process (IPC, dma-buf), a network card (GPUDirect RDMA) or
// another device. curb does not keep such a block when it is freed, because others may still use it; the driver handles
// that free.

#include "accounting/shared.hpp"
#include "accounting/vmm.hpp"
#include "blocks/answers.hpp"
#include "blocks/blocks.hpp"
#include "blocks/ipc.hpp"
#include "cache/cache.hpp"
#include "contexts/contexts.hpp"
#include "hooks/noted.hpp"

namespace curb::shim {
namespace {

// True for the attributes that programs query before they register memory with a network card through nv-p2p.h: its
// tokens, its capability, and the buffer ID, by which registration caches distinguish a block from a later one at the
// same address. No other call shows a registration.
bool is_for_registration(CUpointer_attribute attribute) noexcept {
    return attribute == CU_POINTER_ATTRIBUTE_P2P_TOKENS || attribute == CU_POINTER_ATTRIBUTE_BUFFER_ID ||
           attribute == CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE;
}

// Such memory is not kept when it is freed, and not moved.
void may_be_registered(CUdeviceptr address) noexcept {
    if (!process::active()) return;
    cache::share(address, false);
    vmm::pin_at(address);
}

// Records what the driver has opened. Returns its result.
CUresult opened(CUresult result, const CUdeviceptr *address, const CUipcMemHandle &handle) noexcept {
    return noted(result, [&] { shared::opened(*address, handle, current_context()); });
}

// True for a handle of curb's, which no driver knows.
bool is_curbs(const CUipcMemHandle &handle) noexcept { return process::active() && blocks::is_curbs(handle); }

// Records that another process may use the event. Returns the driver's result.
CUresult shares_event(CUresult result, const CUevent *event) noexcept {
    return noted(result, [=] { shared::shares_event(*event, current_context()); });
}

}  // namespace
}  // namespace curb::shim

using namespace curb::shim;

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address) {
    if (const auto curbs = blocks::get_ipc_handle(handle, address)) return *curbs;
    cache::share(address, true);
    return noted(driver().cuIpcGetMemHandle(handle, address), [=] { shared::exported(address, *handle); });
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *address, CUipcMemHandle handle, unsigned flags) {
    if (is_curbs(handle)) return opened(blocks::open_ipc_handle(address, handle), address, handle);
    return opened(driver().cuIpcOpenMemHandle(address, handle, flags), address, handle);
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *address, CUipcMemHandle handle, unsigned flags) {
    if (is_curbs(handle)) return opened(blocks::open_ipc_handle(address, handle), address, handle);
    return opened(driver().cuIpcOpenMemHandle_v2(address, handle, flags), address, handle);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
    const auto curbs = blocks::close_ipc_handle(address);
    return noted(curbs ? *curbs : driver().cuIpcCloseMemHandle(address), [=] { shared::closed(address); });
}

CUresult cuIpcGetEventHandle(CUipcEventHandle *handle, CUevent event) {
    return shares_event(driver().cuIpcGetEventHandle(handle, event), &event);
}

CUresult cuIpcOpenEventHandle(CUevent *event, CUipcEventHandle handle) {
    return shares_event(driver().cuIpcOpenEventHandle(event, handle), event);
}

CUresult cuEventDestroy_v2(CUevent event) {
    shared::destroyed_event(event);  // first: another thread may be given the same handle
    return driver().cuEventDestroy_v2(event);
}

// Memory of a graphics library. What is mapped of it must not be used once the import is destroyed (CUDA Driver API).
CUresult cuImportExternalMemory(CUexternalMemory *memory, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *description) {
    return noted(driver().cuImportExternalMemory(memory, description), shared::imported_external);
}

CUresult cuDestroyExternalMemory(CUexternalMemory memory) {
    return noted(driver().cuDestroyExternalMemory(memory), shared::destroyed_external);
}

CUresult cuMemGetHandleForAddressRange(void *handle, CUdeviceptr address, size_t bytes, CUmemRangeHandleType type,
                                       unsigned long long flags) {
    if (process::active()) {
        cache::share(address, true);
        vmm::pin_at(address);
    }
    return driver().cuMemGetHandleForAddressRange(handle, address, bytes, type, flags);
}

// CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, the only attribute that can be set, stays with the memory and is for GPUDirect
// RDMA.
CUresult cuPointerSetAttribute(const void *value, CUpointer_attribute attribute, CUdeviceptr address) {
    cache::share(address, false);
    return blocks::set_attribute(value, attribute, address);
}

CUresult cuPointerGetAttribute(void *value, CUpointer_attribute attribute, CUdeviceptr address) {
    if (is_for_registration(attribute)) may_be_registered(address);
    return blocks::attribute(value, attribute, address);
}

CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute *attributes, void **values, CUdeviceptr address) {
    bool registers = false;
    for (unsigned i = 0; attributes && i < count; ++i) registers |= is_for_registration(attributes[i]);
    if (registers) may_be_registered(address);
    return blocks::attributes(count, attributes, values, address);
}

// From now on work on the current context's device may use any block of the peer.
CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
    Device *device = process::active() ? contexts::device_of(peer) : nullptr;
    const CUresult result = driver().cuCtxEnablePeerAccess(peer, flags);
    if (result != CUDA_SUCCESS || !device) return result;
    device->kept.peers = true;
    const Device *user = devices::current();
    if (!user || blocks::let_use(*user, *device)) return result;
    driver().cuCtxDisablePeerAccess(peer);
    return CUDA_ERROR_OUT_OF_MEMORY;
}
