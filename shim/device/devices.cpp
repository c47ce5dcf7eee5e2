#include "device/devices.hpp"

#include <algorithm>

#include "host/clock.hpp"
#include "host/process_state.hpp"
#include "threads/worker_signal.hpp"

namespace curb::shim::devices {

namespace {

int attribute(CUdevice_attribute which, CUdevice device) noexcept {
    int value = 0;
    return ask_twice<&Driver::cuDeviceGetAttribute>(&value, which, device) == CUDA_SUCCESS ? value : 0;
}

}  // namespace

void discover() noexcept {
    find_clock();
    int count = 0;
    if (ask_twice<&Driver::cuDeviceGetCount>(&count) != CUDA_SUCCESS) return;
    for (int ordinal = 0; ordinal < count && ordinal < kMost; ++ordinal) {
        Device &device = at(ordinal);
        device.ordinal = ordinal;
        device.freshness.set_reach(policy::kUnbounded);
        std::size_t total = 0;
        ask_twice<&Driver::cuDeviceTotalMem_v2>(&total, ordinal);
        device.total = total;
        ask_twice<&Driver::cuDeviceGetPCIBusId>(device.pci.data(), static_cast<int>(device.pci.size()), ordinal);
        ask_twice<&Driver::cuDeviceGetName>(device.model.data(), static_cast<int>(device.model.size()) - 1, ordinal);
        device.resident_threads =
            static_cast<Bytes>(attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, ordinal)) *
            static_cast<Bytes>(attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, ordinal));
        // _v2 returns the UUID of a MIG instance, the older form always that of the GPU.
        CUuuid gpu{}, own{};
        ask_twice<&Driver::cuDeviceGetUuid>(&gpu, ordinal);
        if (ask_twice<&Driver::cuDeviceGetUuid_v2>(&own, ordinal) != CUDA_SUCCESS) own = gpu;
        device.shares_host_memory = attribute(CU_DEVICE_ATTRIBUTE_INTEGRATED, ordinal) != 0;
        device.meter.identify(gpu, own, total != 0 ? total : ~Bytes{0}, device.shares_host_memory);
        detail::known.count = ordinal + 1;
    }
}

Device *find(CUdevice device) noexcept {
    return process::active() && device >= 0 && device < count() ? &at(device) : nullptr;
}

Device *current() noexcept {
    CUdevice device = -1;
    if (!process::active()) return nullptr;
    return ask_twice<&Driver::cuCtxGetDevice>(&device) == CUDA_SUCCESS ? find(device) : nullptr;
}

bool in_use(const Device &device) noexcept { return device.contexts.live > 0 || device.ledger.held() > 0; }

bool any_in_use() noexcept { return std::any_of(all().begin(), all().end(), in_use); }

bool any_stale() noexcept {
    constexpr std::uint64_t kOldMs = 1000;
    return std::any_of(all().begin(), all().end(),
                       [](const Device &device) { return in_use(device) && device.freshness.age_ms() >= kOldMs; });
}

const Device *sharing_host_memory() noexcept {
    const auto found =
        std::find_if(all().begin(), all().end(), [](const Device &device) { return device.shares_host_memory; });
    return found == all().end() ? nullptr : &*found;
}

void measure_soon(Device &device) noexcept {
    if (device.freshness.ask_soon()) worker_signal::wake_up();
}

void measure_all_soon() noexcept {
    for (Device &device : all())
        if (in_use(device)) measure_soon(device);
}

void context_made(Device &device) noexcept {
    ++device.contexts.live;
    ++detail::known.contexts;
}

bool context_gone(Device &device) noexcept {
    --detail::known.contexts;
    return --device.contexts.live == 0;
}

}  // namespace curb::shim::devices
