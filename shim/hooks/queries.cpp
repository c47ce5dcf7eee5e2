// What programs are told about the device: the capped one, the same by CUDA and by NVML.

#include <algorithm>

#include "admission.hpp"
#include "devices.hpp"
#include "keep_errno.hpp"
#include "nvml.hpp"
#include "process.hpp"

namespace curb::shim {
namespace {

// The cap that programs are shown; none: they are shown the device.
std::optional<Bytes> shown_cap(const Device &device) noexcept {
    return process::snapshot().of(device.ordinal).report_device ? std::nullopt : admission::cap(device);
}

struct Figures {
    Bytes total;
    Bytes free;
};

// What is told instead of the device's own figures.
Figures told(Device &device, Figures truth) noexcept {
    if (admission::terms(device).refuse_everything) return {truth.total, 0};
    const auto cap = shown_cap(device);
    if (!cap) return truth;
    const std::uint64_t age = devices::now_ms() - device.measured_ms.load(std::memory_order_relaxed);
    if (device.changed.load(std::memory_order_relaxed) || age >= policy::Staleness::kFarMs) devices::reconcile(device);
    return {std::min(truth.total, *cap), std::min(truth.free, admission::room(device, *cap))};
}

// The device that NVML calls by this handle; null: none of this process's, or curb is not active.
Device *of_nvml(nvmlDevice_t handle) noexcept {
    if (!process::active()) return nullptr;
    for (int ordinal = 0; ordinal < devices::count(); ++ordinal)
        if (devices::at(ordinal).meter.device() == handle) return &devices::at(ordinal);
    return nullptr;
}

// Calls NVML's own function and shows the capped device in `figures`, which has total, free and used.
template <class Function, class Memory>
nvmlReturn_t memory_info(const char *symbol, nvmlDevice_t handle, Memory *figures) noexcept {
    const KeepErrno keep_errno;
    const auto real = reinterpret_cast<Function *>(nvml::loaded(symbol));
    if (!real) return NVML_ERROR_UNINITIALIZED;
    const nvmlReturn_t result = real(handle, figures);
    Device *device = result == NVML_SUCCESS && figures ? of_nvml(handle) : nullptr;
    if (!device || (!shown_cap(*device) && !admission::terms(*device).refuse_everything)) return result;
    const Figures shown = told(*device, {figures->total, figures->free});
    figures->total = shown.total;
    figures->free = shown.free;
    figures->used = shown.total - shown.free;
    return result;
}

}  // namespace
}  // namespace curb::shim

using namespace curb::shim;

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice ordinal) {
    const CUresult result = driver().cuDeviceTotalMem_v2(bytes, ordinal);
    const Device *device = result == CUDA_SUCCESS ? devices::find(ordinal) : nullptr;
    if (device)
        if (const auto cap = shown_cap(*device)) *bytes = std::min<size_t>(*bytes, *cap);
    return result;
}

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    const CUresult result = driver().cuMemGetInfo_v2(free_bytes, total);
    if (Device *device = result == CUDA_SUCCESS ? devices::current() : nullptr) {
        const Figures shown = told(*device, {*total, *free_bytes});
        *total = shown.total;
        *free_bytes = shown.free;
    }
    return result;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t handle, nvmlMemory_t *figures) {
    return memory_info<decltype(nvmlDeviceGetMemoryInfo)>("nvmlDeviceGetMemoryInfo", handle, figures);
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t handle, nvmlMemory_v2_t *figures) {
    const nvmlReturn_t result =
        memory_info<decltype(nvmlDeviceGetMemoryInfo_v2)>("nvmlDeviceGetMemoryInfo_v2", handle, figures);
    // What the system keeps of the device is no part of the capped one: total is free and used.
    if (result == NVML_SUCCESS && figures->total == figures->free + figures->used) figures->reserved = 0;
    return result;
}
