// cuGetProcAddress: from a name, a version and a choice of default stream to an address. The address is that of the
// exact export, as measured on the real driver (docs/results/driver.md).
#include <algorithm>
#include <string_view>

#include "driver.hpp"

namespace curb::sim {

namespace {

struct Export {
    std::string_view name;
    void *address;
    void *per_thread;
};

// Every export that cuda_functions.def declares. What has no body does not link.
const Export kExports[] = {
#define CURB_CU(name, types) {#name, reinterpret_cast<void *>(&::name), nullptr},
#define CURB_CU_STREAM(name, types) \
    {#name, reinterpret_cast<void *>(&::name), reinterpret_cast<void *>(&::name##_ptsz)},
#define CURB_CU_BLOCKING(name, types) \
    {#name, reinterpret_cast<void *>(&::name), reinterpret_cast<void *>(&::name##_ptds)},
#include "cuda_functions.def"
#undef CURB_CU
#undef CURB_CU_STREAM
#undef CURB_CU_BLOCKING
};

// From which version of the API a name means which export: as the CUDA 13.0 runtime asks for them, and else as cuda.h
// brought them in. No export: from there on the name means one with other parameters, which is not simulated.
struct Row {
    const char *name;
    int since;
    const char *meaning;
};
constexpr Row kRows[] = {
    {"cuInit", 2000, "cuInit"},
    {"cuDriverGetVersion", 2020, "cuDriverGetVersion"},
    {"cuDeviceGet", 2000, "cuDeviceGet"},
    {"cuDeviceGetCount", 2000, "cuDeviceGetCount"},
    {"cuDeviceGetName", 2000, "cuDeviceGetName"},
    {"cuDeviceGetUuid", 9020, "cuDeviceGetUuid"},
    {"cuDeviceGetUuid", 11040, "cuDeviceGetUuid_v2"},
    {"cuDeviceTotalMem", 3020, "cuDeviceTotalMem_v2"},
    {"cuDeviceGetAttribute", 2000, "cuDeviceGetAttribute"},
    {"cuDeviceGetPCIBusId", 4010, "cuDeviceGetPCIBusId"},
    {"cuDeviceGetByPCIBusId", 4010, "cuDeviceGetByPCIBusId"},
    {"cuDeviceCanAccessPeer", 4000, "cuDeviceCanAccessPeer"},
    {"cuDevicePrimaryCtxRetain", 7000, "cuDevicePrimaryCtxRetain"},
    {"cuDevicePrimaryCtxRelease", 11000, "cuDevicePrimaryCtxRelease_v2"},
    {"cuDevicePrimaryCtxRelease", 7000, "cuDevicePrimaryCtxRelease"},
    {"cuDevicePrimaryCtxReset", 11000, "cuDevicePrimaryCtxReset_v2"},
    {"cuDevicePrimaryCtxReset", 7000, "cuDevicePrimaryCtxReset"},
    {"cuDevicePrimaryCtxSetFlags", 11000, "cuDevicePrimaryCtxSetFlags_v2"},
    {"cuDevicePrimaryCtxGetState", 7000, "cuDevicePrimaryCtxGetState"},
    {"cuCtxCreate", 3020, "cuCtxCreate_v2"},
    {"cuCtxCreate", 11040, "cuCtxCreate_v3"},
    {"cuCtxCreate", 12050, "cuCtxCreate_v4"},
    {"cuCtxDestroy", 4000, "cuCtxDestroy_v2"},
    {"cuCtxDestroy", 2000, "cuCtxDestroy"},
    {"cuCtxAttach", 2000, "cuCtxAttach"},
    {"cuCtxDetach", 2000, "cuCtxDetach"},
    {"cuCtxPushCurrent", 4000, "cuCtxPushCurrent_v2"},
    {"cuCtxPopCurrent", 4000, "cuCtxPopCurrent_v2"},
    {"cuCtxSetCurrent", 4000, "cuCtxSetCurrent"},
    {"cuCtxGetCurrent", 4000, "cuCtxGetCurrent"},
    {"cuCtxGetDevice", 2000, "cuCtxGetDevice"},
    {"cuCtxGetDevice", 13000, "cuCtxGetDevice_v2"},
    {"cuCtxSynchronize", 2000, "cuCtxSynchronize"},
    {"cuCtxSynchronize", 13000, "cuCtxSynchronize_v2"},
    {"cuCtxSetLimit", 3010, "cuCtxSetLimit"},
    {"cuCtxGetLimit", 3010, "cuCtxGetLimit"},
    {"cuCtxGetFlags", 7000, "cuCtxGetFlags"},
    {"cuCtxGetApiVersion", 3020, "cuCtxGetApiVersion"},
    {"cuCtxEnablePeerAccess", 4000, "cuCtxEnablePeerAccess"},
    {"cuCtxDisablePeerAccess", 4000, "cuCtxDisablePeerAccess"},
    {"cuMemGetInfo", 3020, "cuMemGetInfo_v2"},
    {"cuMemAlloc", 3020, "cuMemAlloc_v2"},
    {"cuMemAllocPitch", 3020, "cuMemAllocPitch_v2"},
    {"cuMemAllocManaged", 6000, "cuMemAllocManaged"},
    {"cuMemFree", 3020, "cuMemFree_v2"},
    {"cuMemGetAddressRange", 3020, "cuMemGetAddressRange_v2"},
    {"cuMemAllocAsync", 11020, "cuMemAllocAsync"},
    {"cuMemAllocFromPoolAsync", 11020, "cuMemAllocFromPoolAsync"},
    {"cuMemFreeAsync", 11020, "cuMemFreeAsync"},
    {"cuMemPoolCreate", 11020, "cuMemPoolCreate"},
    {"cuMemPoolDestroy", 11020, "cuMemPoolDestroy"},
    {"cuMemPoolTrimTo", 11020, "cuMemPoolTrimTo"},
    {"cuMemPoolSetAttribute", 11020, "cuMemPoolSetAttribute"},
    {"cuMemPoolGetAttribute", 11020, "cuMemPoolGetAttribute"},
    {"cuMemPoolSetAccess", 11020, "cuMemPoolSetAccess"},
    {"cuMemPoolGetAccess", 11020, "cuMemPoolGetAccess"},
    {"cuMemPoolExportToShareableHandle", 11020, "cuMemPoolExportToShareableHandle"},
    {"cuMemPoolImportFromShareableHandle", 11020, "cuMemPoolImportFromShareableHandle"},
    {"cuMemPoolExportPointer", 11020, "cuMemPoolExportPointer"},
    {"cuMemPoolImportPointer", 11020, "cuMemPoolImportPointer"},
    {"cuDeviceGetDefaultMemPool", 11020, "cuDeviceGetDefaultMemPool"},
    {"cuDeviceGetMemPool", 11020, "cuDeviceGetMemPool"},
    {"cuDeviceSetMemPool", 11020, "cuDeviceSetMemPool"},
    {"cuMemGetDefaultMemPool", 13000, "cuMemGetDefaultMemPool"},
    {"cuMemGetMemPool", 13000, "cuMemGetMemPool"},
    {"cuMemSetMemPool", 13000, "cuMemSetMemPool"},
    {"cuMemCreate", 10020, "cuMemCreate"},
    {"cuMemRelease", 10020, "cuMemRelease"},
    {"cuMemMap", 10020, "cuMemMap"},
    {"cuMemUnmap", 10020, "cuMemUnmap"},
    {"cuMemSetAccess", 10020, "cuMemSetAccess"},
    {"cuMemGetAccess", 10020, "cuMemGetAccess"},
    {"cuMemRetainAllocationHandle", 11000, "cuMemRetainAllocationHandle"},
    {"cuMemImportFromShareableHandle", 10020, "cuMemImportFromShareableHandle"},
    {"cuMemExportToShareableHandle", 10020, "cuMemExportToShareableHandle"},
    {"cuMemAddressReserve", 10020, "cuMemAddressReserve"},
    {"cuMemAddressFree", 10020, "cuMemAddressFree"},
    {"cuMemGetAllocationGranularity", 10020, "cuMemGetAllocationGranularity"},
    {"cuMemGetAllocationPropertiesFromHandle", 10020, "cuMemGetAllocationPropertiesFromHandle"},
    {"cuArrayCreate", 3020, "cuArrayCreate_v2"},
    {"cuArray3DCreate", 3020, "cuArray3DCreate_v2"},
    {"cuArrayDestroy", 2000, "cuArrayDestroy"},
    {"cuArrayGetDescriptor", 3020, "cuArrayGetDescriptor_v2"},
    {"cuArray3DGetDescriptor", 3020, "cuArray3DGetDescriptor_v2"},
    {"cuArrayGetMemoryRequirements", 11060, "cuArrayGetMemoryRequirements"},
    {"cuMipmappedArrayCreate", 5000, "cuMipmappedArrayCreate"},
    {"cuMipmappedArrayDestroy", 5000, "cuMipmappedArrayDestroy"},
    {"cuMipmappedArrayGetMemoryRequirements", 11060, "cuMipmappedArrayGetMemoryRequirements"},
    {"cuGraphAddMemAllocNode", 11040, "cuGraphAddMemAllocNode"},
    {"cuGraphAddMemFreeNode", 11040, "cuGraphAddMemFreeNode"},
    {"cuGraphAddNode", 12030, "cuGraphAddNode_v2"},
    {"cuGraphAddEmptyNode", 10000, "cuGraphAddEmptyNode"},
    {"cuGraphCreate", 10000, "cuGraphCreate"},
    {"cuGraphDestroy", 10000, "cuGraphDestroy"},
    {"cuGraphGetNodes", 10000, "cuGraphGetNodes"},
    {"cuGraphInstantiateWithFlags", 11040, "cuGraphInstantiateWithFlags"},
    {"cuGraphInstantiateWithParams", 12000, "cuGraphInstantiateWithParams"},
    {"cuGraphUpload", 11010, "cuGraphUpload"},
    {"cuGraphLaunch", 10000, "cuGraphLaunch"},
    {"cuGraphExecDestroy", 10000, "cuGraphExecDestroy"},
    {"cuDeviceGraphMemTrim", 11040, "cuDeviceGraphMemTrim"},
    {"cuDeviceGetGraphMemAttribute", 11040, "cuDeviceGetGraphMemAttribute"},
    {"cuDeviceSetGraphMemAttribute", 11040, "cuDeviceSetGraphMemAttribute"},
    {"cuGraphMemAllocNodeGetParams", 11040, "cuGraphMemAllocNodeGetParams"},
    {"cuGraphMemFreeNodeGetParams", 11040, "cuGraphMemFreeNodeGetParams"},
    {"cuGraphNodeGetType", 10000, "cuGraphNodeGetType"},
    {"cuStreamCreate", 2000, "cuStreamCreate"},
    {"cuStreamCreateWithPriority", 5050, "cuStreamCreateWithPriority"},
    {"cuStreamDestroy", 4000, "cuStreamDestroy_v2"},
    {"cuStreamSynchronize", 2000, "cuStreamSynchronize"},
    {"cuStreamQuery", 2000, "cuStreamQuery"},
    {"cuStreamWaitEvent", 3020, "cuStreamWaitEvent"},
    {"cuStreamGetCtx", 9020, "cuStreamGetCtx"},
    {"cuStreamGetDevice", 12080, "cuStreamGetDevice"},
    {"cuStreamGetFlags", 5050, "cuStreamGetFlags"},
    {"cuStreamGetPriority", 5050, "cuStreamGetPriority"},
    {"cuStreamGetId", 12000, "cuStreamGetId"},
    {"cuStreamBeginCapture", 10010, "cuStreamBeginCapture_v2"},
    {"cuStreamBeginCaptureToGraph", 12030, "cuStreamBeginCaptureToGraph"},
    {"cuStreamEndCapture", 10000, "cuStreamEndCapture"},
    {"cuStreamIsCapturing", 10000, "cuStreamIsCapturing"},
    {"cuStreamGetCaptureInfo", 11030, "cuStreamGetCaptureInfo_v2"},
    {"cuThreadExchangeStreamCaptureMode", 10010, "cuThreadExchangeStreamCaptureMode"},
    {"cuLaunchHostFunc", 10000, "cuLaunchHostFunc"},
    {"cuEventCreate", 2000, "cuEventCreate"},
    {"cuEventRecord", 2000, "cuEventRecord"},
    {"cuEventQuery", 2000, "cuEventQuery"},
    {"cuEventSynchronize", 2000, "cuEventSynchronize"},
    {"cuEventDestroy", 4000, "cuEventDestroy_v2"},
    {"cuEventElapsedTime", 2000, "cuEventElapsedTime"},
    {"cuEventElapsedTime", 12080, "cuEventElapsedTime_v2"},
    {"cuModuleLoad", 2000, "cuModuleLoad"},
    {"cuModuleLoadData", 2000, "cuModuleLoadData"},
    {"cuModuleLoadDataEx", 2010, "cuModuleLoadDataEx"},
    {"cuModuleLoadFatBinary", 2000, "cuModuleLoadFatBinary"},
    {"cuModuleUnload", 2000, "cuModuleUnload"},
    {"cuModuleGetFunction", 2000, "cuModuleGetFunction"},
    {"cuModuleGetGlobal", 3020, "cuModuleGetGlobal_v2"},
    {"cuLibraryLoadData", 12000, "cuLibraryLoadData"},
    {"cuLibraryUnload", 12000, "cuLibraryUnload"},
    {"cuLibraryGetKernel", 12000, "cuLibraryGetKernel"},
    {"cuLibraryGetModule", 12000, "cuLibraryGetModule"},
    {"cuKernelGetFunction", 12000, "cuKernelGetFunction"},
    {"cuLaunchKernel", 4000, "cuLaunchKernel"},
    {"cuFuncGetAttribute", 2020, "cuFuncGetAttribute"},
    {"cuMemcpy", 4000, "cuMemcpy"},
    {"cuMemcpyAsync", 4000, "cuMemcpyAsync"},
    {"cuMemcpyHtoD", 3020, "cuMemcpyHtoD_v2"},
    {"cuMemcpyDtoH", 3020, "cuMemcpyDtoH_v2"},
    {"cuMemcpyDtoD", 3020, "cuMemcpyDtoD_v2"},
    {"cuMemcpyHtoDAsync", 3020, "cuMemcpyHtoDAsync_v2"},
    {"cuMemcpyDtoHAsync", 3020, "cuMemcpyDtoHAsync_v2"},
    {"cuMemcpyDtoDAsync", 3020, "cuMemcpyDtoDAsync_v2"},
    {"cuMemcpyPeer", 4000, "cuMemcpyPeer"},
    {"cuMemsetD8", 3020, "cuMemsetD8_v2"},
    {"cuMemsetD16", 3020, "cuMemsetD16_v2"},
    {"cuMemsetD32", 3020, "cuMemsetD32_v2"},
    {"cuMemsetD8Async", 3020, "cuMemsetD8Async"},
    {"cuMemsetD32Async", 3020, "cuMemsetD32Async"},
    {"cuMemAllocHost", 3020, "cuMemAllocHost_v2"},
    {"cuMemFreeHost", 2000, "cuMemFreeHost"},
    {"cuMemHostAlloc", 2020, "cuMemHostAlloc"},
    {"cuMemHostRegister", 6050, "cuMemHostRegister_v2"},
    {"cuMemHostUnregister", 4000, "cuMemHostUnregister"},
    {"cuMemHostGetDevicePointer", 3020, "cuMemHostGetDevicePointer_v2"},
    {"cuPointerGetAttribute", 4000, "cuPointerGetAttribute"},
    {"cuPointerGetAttributes", 7000, "cuPointerGetAttributes"},
    {"cuIpcGetMemHandle", 4010, "cuIpcGetMemHandle"},
    {"cuIpcOpenMemHandle", 11000, "cuIpcOpenMemHandle_v2"},
    {"cuIpcCloseMemHandle", 4010, "cuIpcCloseMemHandle"},
    {"cuMemPrefetchAsync", 12020, "cuMemPrefetchAsync_v2"},
    {"cuMemAdvise", 12020, "cuMemAdvise_v2"},
    {"cuGetErrorString", 6000, "cuGetErrorString"},
    {"cuGetErrorName", 6000, "cuGetErrorName"},
    {"cuGetProcAddress", 12000, "cuGetProcAddress_v2"},
    {"cuGetProcAddress", 11030, "cuGetProcAddress"},
    {"cuGetExportTable", 3000, "cuGetExportTable"},
    {"cuGraphInstantiate", 12000, "cuGraphInstantiateWithFlags"},
    {"cuStreamGetCaptureInfo", 12030, nullptr},
};

constexpr bool has_row(std::string_view name) {
    return std::any_of(std::begin(kRows), std::end(kRows),
                       [=](const Row &row) { return row.meaning && row.meaning == name; });
}
#define CURB_CU(name, types) static_assert(has_row(#name), "an export that cuGetProcAddress does not know");
#define CURB_CU_STREAM CURB_CU
#define CURB_CU_BLOCKING CURB_CU
#include "cuda_functions.def"
#undef CURB_CU
#undef CURB_CU_STREAM
#undef CURB_CU_BLOCKING

constexpr int kFirstPerThread = 7000;  // per-thread default streams came with CUDA 7.0

CUdriverProcAddressQueryResult look_up(std::string_view name, int version, bool per_thread, void **address) {
    const Row *best = nullptr;
    bool known = false;
    for (const Row &row : kRows) {
        if (row.name != name) continue;
        known = true;
        if (row.since <= version && (!best || row.since > best->since)) best = &row;
    }
    if (!known) return CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    if (!best) return CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
    if (!best->meaning) return CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    const Export &found = *std::find_if(std::begin(kExports), std::end(kExports),
                                        [=](const Export &one) { return one.name == best->meaning; });
    *address = per_thread && found.per_thread && version >= kFirstPerThread ? found.per_thread : found.address;
    return CU_GET_PROC_ADDRESS_SUCCESS;
}

CUresult answer(const char *name, void **address, int version, uint64_t flags, CUdriverProcAddressQueryResult *status) {
    constexpr uint64_t kKnown = CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    if (!name || !address || flags & ~kKnown) return CUDA_ERROR_INVALID_VALUE;
    *address = nullptr;
    const auto found = look_up(name, version, flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, address);
    if (status) *status = found;
    return CUDA_SUCCESS;  // with a null address when nothing was found, asked for the status or not (measured on an
                          // H200)
}

}  // namespace

SIM_CU(cuGetProcAddress_v2,
       (const char *name, void **address, int version, uint64_t flags, CUdriverProcAddressQueryResult *status),
       (name, address, version, flags, status)) {
    return answer(name, address, version, flags, status);
}

SIM_CU(cuGetProcAddress, (const char *name, void **address, int version, uint64_t flags),
       (name, address, version, flags)) {
    return answer(name, address, version, flags, nullptr);
}

// The private tables of real runtimes are not imitated.
SIM_CU(cuGetExportTable, (const void **table, const CUuuid *id), (table, id)) {
    return table && id ? CUDA_ERROR_NOT_FOUND : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace curb::sim
