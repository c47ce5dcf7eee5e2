// Contexts: what they cost is not told by any argument, so it is measured; what they own is freed with them.

#include "admission.hpp"
#include "allocations.hpp"

namespace curb::shim {
namespace {

bool primary_is_active(const Device &device) noexcept {
    unsigned flags = 0;
    int active = 0;
    return driver().cuDevicePrimaryCtxGetState(device.ordinal, &flags, &active) == CUDA_SUCCESS && active;
}

// Where NVML does not see this process, a context costs what the device had less free after its creation. Others may
// have allocated in that moment: then the figure errs on the side of the cap.
struct Birth {
    Device *device;
    std::optional<Bytes> used_before;

    explicit Birth(Device *on) noexcept : device(on) {
        if (device && admission::cap(*device)) used_before = device->meter.used_by_all();
    }
    void happened() const noexcept {
        if (!device) return;
        device->contexts.fetch_add(1, std::memory_order_relaxed);
        if (!used_before) return;  // only observed: nothing is enforced, and NVML's start would cost 9 ms
        devices::reconcile(*device);
        const auto used = device->meter.used_by_all();
        if (device->blind.load(std::memory_order_relaxed) && used && *used > *used_before)
            device->ledger.set_overhead(device->ledger.overhead() + *used - *used_before);
    }
};

// The context and its plain memory are gone.
void died(Device *device, CUcontext context) noexcept {
    allocations::drop_context(context);
    if (!device) return;
    const bool last = device->contexts.fetch_sub(1, std::memory_order_relaxed) == 1;
    if (last && device->blind.load(std::memory_order_relaxed)) device->ledger.set_overhead(0);
    if (admission::cap(*device)) devices::reconcile(*device);
}

// The primary context's handle, without keeping a reference; null: it is not active.
CUcontext primary_of(const Device &device) noexcept {
    CUcontext context = nullptr;
    if (!primary_is_active(device) || driver().cuDevicePrimaryCtxRetain(&context, device.ordinal) != CUDA_SUCCESS)
        return nullptr;
    driver().cuDevicePrimaryCtxRelease_v2(device.ordinal);
    return context;
}

// Release and reset: whatever made the primary context inactive freed its memory.
template <class Call>
CUresult end_primary(CUdevice ordinal, Call call) {
    Device *device = devices::find(ordinal);
    const CUcontext context = device ? primary_of(*device) : nullptr;
    const CUresult result = call();
    if (context && !primary_is_active(*device)) died(device, context);
    return result;
}

template <class Call>
CUresult create(CUdevice ordinal, Call call) {
    const Birth birth(devices::find(ordinal));
    const CUresult result = call();
    if (result == CUDA_SUCCESS) birth.happened();
    return result;
}

template <class Call>
CUresult destroy(CUcontext context, Call call) {
    Device *device = nullptr;
    if (process::active() && driver().cuCtxPushCurrent_v2(context) == CUDA_SUCCESS) {
        device = devices::current();
        CUcontext popped = nullptr;
        driver().cuCtxPopCurrent_v2(&popped);
    }
    const CUresult result = call();
    if (result == CUDA_SUCCESS && process::active()) died(device, context);
    return result;
}

}  // namespace
}  // namespace curb::shim

using namespace curb::shim;

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice ordinal) {
    Device *device = devices::find(ordinal);
    const auto retain = [&] { return driver().cuDevicePrimaryCtxRetain(context, ordinal); };
    return device && !primary_is_active(*device) ? create(ordinal, retain) : retain();
}
CUresult cuDevicePrimaryCtxRelease(CUdevice ordinal) {
    return end_primary(ordinal, [&] { return driver().cuDevicePrimaryCtxRelease(ordinal); });
}
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice ordinal) {
    return end_primary(ordinal, [&] { return driver().cuDevicePrimaryCtxRelease_v2(ordinal); });
}
CUresult cuDevicePrimaryCtxReset(CUdevice ordinal) {
    return end_primary(ordinal, [&] { return driver().cuDevicePrimaryCtxReset(ordinal); });
}
CUresult cuDevicePrimaryCtxReset_v2(CUdevice ordinal) {
    return end_primary(ordinal, [&] { return driver().cuDevicePrimaryCtxReset_v2(ordinal); });
}
CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice ordinal) {
    return create(ordinal, [&] { return driver().cuCtxCreate_v2(context, flags, ordinal); });
}
CUresult cuCtxCreate_v3(CUcontext *context, CUexecAffinityParam *affinity, int count, unsigned flags,
                        CUdevice ordinal) {
    return create(ordinal, [&] { return driver().cuCtxCreate_v3(context, affinity, count, flags, ordinal); });
}
CUresult cuCtxCreate_v4(CUcontext *context, CUctxCreateParams *parameters, unsigned flags, CUdevice ordinal) {
    return create(ordinal, [&] { return driver().cuCtxCreate_v4(context, parameters, flags, ordinal); });
}
CUresult cuCtxDestroy(CUcontext context) {
    return destroy(context, [&] { return driver().cuCtxDestroy(context); });
}
CUresult cuCtxDestroy_v2(CUcontext context) {
    return destroy(context, [&] { return driver().cuCtxDestroy_v2(context); });
}
