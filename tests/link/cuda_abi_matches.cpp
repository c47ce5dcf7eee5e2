// Compares the declarations of shim/abi with NVIDIA's <cuda.h>, wherever a toolkit is installed: every function's
// parameters, every constant used in them, the layout of every struct. Compiling is the test.

#include <cuda.h>
#include <stddef.h>
#include <stdint.h>

#include <type_traits>

// Our declarations, in a namespace of their own. Functions are types here, since one C name cannot have two signatures.
namespace ours {
#include "abi/cuda_types.h"
#define CURB_CU(name, types) using fn_##name = CUresult types;
#define CURB_CU_STREAM(name, types) using fn_##name = CUresult types;
#define CURB_CU_BLOCKING(name, types) using fn_##name = CUresult types;
#include "abi/cuda_functions.def"
#undef CURB_CU
#undef CURB_CU_STREAM
#undef CURB_CU_BLOCKING
}  // namespace ours

namespace {

// The types of the two sides have different names, so they are alike if a call passes them alike: pointers to const or
// not, and other types of the same size and alignment.
template <class A, class B>
constexpr bool alike() {
    if constexpr (std::is_pointer_v<A> && std::is_pointer_v<B>)
        return std::is_const_v<std::remove_pointer_t<A>> == std::is_const_v<std::remove_pointer_t<B>>;
    else
        return !std::is_pointer_v<A> && !std::is_pointer_v<B> && sizeof(A) == sizeof(B) && alignof(A) == alignof(B) &&
               std::is_class_v<A> == std::is_class_v<B>;
}
template <class A, class B>
struct Same : std::false_type {};
template <class... A, class... B>
struct Same<ours::CUresult(A...), ::CUresult(B...)> {
    static constexpr bool value = [] {
        if constexpr (sizeof...(A) == sizeof...(B))
            return (alike<A, B>() && ...);
        else
            return false;
    }();
};

}  // namespace

#define SAME_FUNCTION(name) static_assert(Same<ours::fn_##name, decltype(::name)>::value, #name);
#include "toolkit_functions.inc"

#define SAME_LAYOUT(type) \
    static_assert(sizeof(ours::type) == sizeof(::type) && alignof(ours::type) == alignof(::type), #type)
#define SAME_FIELD(type, field)                                                                                       \
    static_assert(                                                                                                    \
        offsetof(ours::type, field) == offsetof(::type, field) && sizeof(ours::type::field) == sizeof(::type::field), \
        #type "." #field)
#define SAME_VALUE(name) static_assert(static_cast<long long>(ours::name) == static_cast<long long>(::name), #name)

SAME_LAYOUT(CUuuid);
SAME_LAYOUT(CUmemLocation);
SAME_FIELD(CUmemLocation, id);
SAME_LAYOUT(CUmemAccessDesc);
SAME_FIELD(CUmemAccessDesc, flags);
SAME_LAYOUT(CUmemAllocationProp);
SAME_FIELD(CUmemAllocationProp, location);
SAME_FIELD(CUmemAllocationProp, allocFlags);
SAME_LAYOUT(CUmemPoolProps);
SAME_FIELD(CUmemPoolProps, location);
SAME_FIELD(CUmemPoolProps, maxSize);
SAME_FIELD(CUmemPoolProps, usage);
SAME_LAYOUT(CUmemPoolPtrExportData);
SAME_LAYOUT(CUipcMemHandle);
SAME_LAYOUT(CUDA_ARRAY_DESCRIPTOR);
SAME_LAYOUT(CUDA_ARRAY3D_DESCRIPTOR);
SAME_FIELD(CUDA_ARRAY3D_DESCRIPTOR, Flags);
SAME_LAYOUT(CUDA_ARRAY_MEMORY_REQUIREMENTS);
SAME_LAYOUT(CUDA_MEMCPY2D);
SAME_FIELD(CUDA_MEMCPY2D, dstPitch);
SAME_FIELD(CUDA_MEMCPY2D, Height);
SAME_LAYOUT(CUDA_MEMCPY3D);
SAME_FIELD(CUDA_MEMCPY3D, srcHeight);
SAME_FIELD(CUDA_MEMCPY3D, Depth);
SAME_LAYOUT(CUDA_MEMCPY3D_PEER);
SAME_FIELD(CUDA_MEMCPY3D_PEER, dstContext);
SAME_FIELD(CUDA_MEMCPY3D_PEER, Depth);
SAME_LAYOUT(CUdevResource);
SAME_FIELD(CUdevResource, sm.smCount);
SAME_LAYOUT(CUarrayMapInfo);
SAME_FIELD(CUarrayMapInfo, memOperationType);
SAME_FIELD(CUarrayMapInfo, memHandle);
SAME_LAYOUT(CUDA_EXTERNAL_MEMORY_HANDLE_DESC);
SAME_FIELD(CUDA_EXTERNAL_MEMORY_HANDLE_DESC, size);
SAME_LAYOUT(CUDA_EXTERNAL_MEMORY_BUFFER_DESC);
SAME_FIELD(CUDA_EXTERNAL_MEMORY_BUFFER_DESC, size);
SAME_LAYOUT(CUlaunchConfig);
SAME_FIELD(CUlaunchConfig, hStream);
SAME_LAYOUT(CUDA_KERNEL_NODE_PARAMS);
SAME_FIELD(CUDA_KERNEL_NODE_PARAMS, kern);
SAME_LAYOUT(CUDA_MEM_ALLOC_NODE_PARAMS);
SAME_FIELD(CUDA_MEM_ALLOC_NODE_PARAMS, bytesize);
SAME_FIELD(CUDA_MEM_ALLOC_NODE_PARAMS, dptr);
SAME_LAYOUT(CUgraphNodeParams);
SAME_FIELD(CUgraphNodeParams, alloc);
SAME_LAYOUT(CUgraphEdgeData);
SAME_LAYOUT(CUDA_GRAPH_INSTANTIATE_PARAMS);
SAME_FIELD(CUDA_GRAPH_INSTANTIATE_PARAMS, result_out);
#if CUDA_VERSION >= 12080
SAME_LAYOUT(CUcheckpointLockArgs);
SAME_FIELD(CUcheckpointLockArgs, timeoutMs);
SAME_LAYOUT(CUcheckpointCheckpointArgs);
SAME_LAYOUT(CUcheckpointRestoreArgs);
SAME_LAYOUT(CUcheckpointUnlockArgs);
#endif
#if CUDA_VERSION >= 13000
SAME_LAYOUT(CUcheckpointGpuPair);
SAME_FIELD(CUcheckpointRestoreArgs, gpuPairs);
SAME_FIELD(CUcheckpointRestoreArgs, gpuPairsCount);
#endif

#include "toolkit_enumerators.inc"
