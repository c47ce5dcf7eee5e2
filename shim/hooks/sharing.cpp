// Memory and events that the program shares: with another process (IPC, dma-buf), a network card (GPUDirect RDMA) or
// another device. curb does not keep such a block when it is freed, because others may still use it; the driver handles
// that free.

#include "accounting/shared.hpp"
#include "cache/cache.hpp"
#include "contexts/contexts.hpp"
#include "host/process_state.hpp"

namespace curb::shim {
namespace {

// True for the attributes that programs query before they register memory with a network card through nv-p2p.h: its
// tokens, its capability, and the buffer ID, by which registration caches distinguish a block from a later one at the
// same address. No other call shows a registration.
bool is_for_registration(CUpointer_attribute attribute) noexcept {
    return attribute == CU_POINTER_ATTRIBUTE_P2P_TOKENS || attribute == CU_POINTER_ATTRIBUTE_BUFFER_ID ||
           attribute == CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE;
}

// Records what the driver has opened. Returns its result.
CUresult opened(CUresult result, const CUdeviceptr *address, const CUipcMemHandle &handle) noexcept {
    CUcontext context = nullptr;
    if (result == CUDA_SUCCESS && process::active() && ask_twice<&Driver::cuCtxGetCurrent>(&context) == CUDA_SUCCESS)
        shared::opened(*address, handle, context);
    return result;
}

// Records that another process may use the event.
void shares_event(CUevent event) noexcept {
    CUcontext context = nullptr;
    if (process::active() && ask_twice<&Driver::cuCtxGetCurrent>(&context) == CUDA_SUCCESS)
        shared::shares_event(event, context);
}

}  // namespace
}  // namespace curb::shim

using namespace curb::shim;

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address) {
    cache::share(address, true);
    const CUresult result = driver().cuIpcGetMemHandle(handle, address);
    if (result == CUDA_SUCCESS && process::active()) shared::exported(address, *handle);
    return result;
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *address, CUipcMemHandle handle, unsigned flags) {
    return opened(driver().cuIpcOpenMemHandle(address, handle, flags), address, handle);
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *address, CUipcMemHandle handle, unsigned flags) {
    return opened(driver().cuIpcOpenMemHandle_v2(address, handle, flags), address, handle);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
    const CUresult result = driver().cuIpcCloseMemHandle(address);
    if (result == CUDA_SUCCESS && process::active()) shared::closed(address);
    return result;
}

CUresult cuIpcGetEventHandle(CUipcEventHandle *handle, CUevent event) {
    const CUresult result = driver().cuIpcGetEventHandle(handle, event);
    if (result == CUDA_SUCCESS) shares_event(event);
    return result;
}

CUresult cuIpcOpenEventHandle(CUevent *event, CUipcEventHandle handle) {
    const CUresult result = driver().cuIpcOpenEventHandle(event, handle);
    if (result == CUDA_SUCCESS) shares_event(*event);
    return result;
}

CUresult cuEventDestroy_v2(CUevent event) {
    shared::destroyed_event(event);  // first: another thread may be given the same handle
    return driver().cuEventDestroy_v2(event);
}

// Memory of a graphics library. What is mapped of it must not be used once the import is destroyed (CUDA Driver API).
CUresult cuImportExternalMemory(CUexternalMemory *memory, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *description) {
    const CUresult result = driver().cuImportExternalMemory(memory, description);
    if (result == CUDA_SUCCESS && process::active()) shared::imported_external();
    return result;
}

CUresult cuDestroyExternalMemory(CUexternalMemory memory) {
    const CUresult result = driver().cuDestroyExternalMemory(memory);
    if (result == CUDA_SUCCESS && process::active()) shared::destroyed_external();
    return result;
}

CUresult cuMemGetHandleForAddressRange(void *handle, CUdeviceptr address, size_t bytes, CUmemRangeHandleType type,
                                       unsigned long long flags) {
    cache::share(address, true);
    return driver().cuMemGetHandleForAddressRange(handle, address, bytes, type, flags);
}

// CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, the only attribute that can be set, stays with the memory and is for GPUDirect
// RDMA.
CUresult cuPointerSetAttribute(const void *value, CUpointer_attribute attribute, CUdeviceptr address) {
    cache::share(address, false);
    return driver().cuPointerSetAttribute(value, attribute, address);
}

CUresult cuPointerGetAttribute(void *value, CUpointer_attribute attribute, CUdeviceptr address) {
    if (is_for_registration(attribute)) cache::share(address, false);
    return driver().cuPointerGetAttribute(value, attribute, address);
}

CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute *attributes, void **values, CUdeviceptr address) {
    bool registers = false;
    for (unsigned i = 0; attributes && i < count; ++i) registers |= is_for_registration(attributes[i]);
    if (registers) cache::share(address, false);
    return driver().cuPointerGetAttributes(count, attributes, values, address);
}

// From now on work on the current context's device may use any block of the peer.
CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
    Device *device = process::active() ? contexts::device_of(peer) : nullptr;
    const CUresult result = driver().cuCtxEnablePeerAccess(peer, flags);
    if (result == CUDA_SUCCESS && device) device->peers = true;
    return result;
}
