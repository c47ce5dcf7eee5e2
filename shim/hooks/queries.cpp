// What programs are told about the device: the capped one.

#include <algorithm>

#include "admission.hpp"
#include "devices.hpp"

using namespace curb::shim;

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice ordinal) {
    const CUresult result = driver().cuDeviceTotalMem_v2(bytes, ordinal);
    const Device *device = result == CUDA_SUCCESS ? devices::find(ordinal) : nullptr;
    if (device)
        if (const auto cap = admission::cap(*device)) *bytes = std::min<size_t>(*bytes, *cap);
    return result;
}

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    const CUresult result = driver().cuMemGetInfo_v2(free_bytes, total);
    Device *device = result == CUDA_SUCCESS ? devices::current() : nullptr;
    const auto cap = device ? admission::cap(*device) : std::nullopt;
    if (cap) {
        if (devices::now_ms() - device->measured_ms.load(std::memory_order_relaxed) >= curb::policy::Staleness::kFarMs)
            devices::reconcile(*device);
        *total = std::min<size_t>(*total, *cap);
        *free_bytes = std::min<size_t>(*free_bytes, curb::policy::room(*cap, device->ledger.held()));
    } else if (device && admission::terms(*device).refuse_everything) {
        *free_bytes = 0;
    }
    return result;
}
