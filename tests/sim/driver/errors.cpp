// Names and texts of the results that cuda_types.h declares.
#include "driver.hpp"

namespace curb::sim {

namespace {

struct Text {
    const char *name = nullptr;
    const char *text = nullptr;
};

// A result without a row does not compile.
Text text_of(CUresult result) {
    switch (result) {
#define TEXT(name, text) \
    case name: return {#name, text}
        TEXT(CUDA_SUCCESS, "no error");
        TEXT(CUDA_ERROR_INVALID_VALUE, "invalid argument");
        TEXT(CUDA_ERROR_OUT_OF_MEMORY, "out of memory");
        TEXT(CUDA_ERROR_NOT_INITIALIZED, "initialization error");
        TEXT(CUDA_ERROR_DEINITIALIZED, "driver shutting down");
        TEXT(CUDA_ERROR_STUB_LIBRARY, "CUDA driver is a stub library");
        TEXT(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected");
        TEXT(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal");
        TEXT(CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid");
        TEXT(CUDA_ERROR_INVALID_CONTEXT, "invalid device context");
        TEXT(CUDA_ERROR_MAP_FAILED, "mapping of buffer object failed");
        TEXT(CUDA_ERROR_ALREADY_MAPPED, "resource already mapped");
        TEXT(CUDA_ERROR_NOT_MAPPED, "resource not mapped");
        TEXT(CUDA_ERROR_UNSUPPORTED_LIMIT, "limit is not supported on this architecture");
        TEXT(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, "peer access is not supported between these two devices");
        TEXT(CUDA_ERROR_FILE_NOT_FOUND, "file not found");
        TEXT(CUDA_ERROR_OPERATING_SYSTEM, "OS call failed or operation not supported on this OS");
        TEXT(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle");
        TEXT(CUDA_ERROR_ILLEGAL_STATE, "the operation cannot be performed in the present state");
        TEXT(CUDA_ERROR_NOT_FOUND, "named symbol not found");
        TEXT(CUDA_ERROR_NOT_READY, "device not ready");
        TEXT(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered");
        TEXT(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "peer access is already enabled");
        TEXT(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, "peer access has not been enabled");
        TEXT(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, "cannot set while device is active in this process");
        TEXT(CUDA_ERROR_CONTEXT_IS_DESTROYED, "context is destroyed");
        TEXT(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "part or all of the requested memory range is already mapped");
        TEXT(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "pointer does not correspond to a registered memory region");
        TEXT(CUDA_ERROR_NOT_PERMITTED, "operation not permitted");
        TEXT(CUDA_ERROR_NOT_SUPPORTED, "operation not supported");
        TEXT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "operation not permitted when stream is capturing");
        TEXT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "operation failed due to a previous error during capture");
        TEXT(CUDA_ERROR_STREAM_CAPTURE_MERGE, "operation would result in a merge of separate capture sequences");
        TEXT(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "capture was not ended in the same stream as it began");
        TEXT(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "capturing stream has unjoined work");
        TEXT(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "dependency created on uncaptured work in another stream");
        TEXT(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
             "operation would make the legacy stream depend on a capturing blocking stream");
        TEXT(CUDA_ERROR_CAPTURED_EVENT, "operation not permitted on an event last recorded in a capturing stream");
        TEXT(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,
             "attempt to terminate a thread-local capture sequence from another thread");
        TEXT(CUDA_ERROR_UNKNOWN, "unknown error");
#undef TEXT
    }
    return {};
}

void answer(const char **out, const char *found) {
    if (!out) throw CUDA_ERROR_INVALID_VALUE;
    *out = found;
    if (!found) throw CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

SIM_CU(6000, cuGetErrorString, (CUresult result, const char **text), (result, text)) {
    answer(text, text_of(result).text);
}

SIM_CU(6000, cuGetErrorName, (CUresult result, const char **name), (result, name)) {
    answer(name, text_of(result).name);
}

}  // namespace curb::sim
