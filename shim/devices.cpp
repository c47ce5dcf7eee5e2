#include "devices.hpp"

#include <ctime>

#include <array>
#include <cerrno>

#include "pools.hpp"
#include "process.hpp"

namespace curb::shim::devices {
namespace {

constexpr int kMost = 64;  // CUDA_VISIBLE_DEVICES of the largest machines name 16

// Leaked with the process: threads may still call the driver while it exits.
constinit std::array<Device, kMost> all{};
constinit int known = 0;

}  // namespace

void discover() noexcept {
    const Driver &cuda = driver();
    int count = 0;
    if (cuda.cuDeviceGetCount(&count) != CUDA_SUCCESS) return;
    for (int ordinal = 0; ordinal < count && ordinal < kMost; ++ordinal) {
        Device &device = all[static_cast<std::size_t>(ordinal)];
        device.ordinal = ordinal;
        std::size_t total = 0;
        cuda.cuDeviceTotalMem_v2(&total, ordinal);
        device.total = total;
        CUuuid uuid{};
        cuda.cuDeviceGetUuid(&uuid, ordinal);
        device.meter.identify(uuid);
        known = ordinal + 1;
    }
}

int count() noexcept { return known; }

Device &at(int ordinal) noexcept { return all[static_cast<std::size_t>(ordinal)]; }

Device *find(CUdevice device) noexcept {
    return process::active() && device >= 0 && device < known ? &at(device) : nullptr;
}

Device *current() noexcept {
    CUdevice device = -1;
    if (!process::active() || driver().cuCtxGetDevice(&device) != CUDA_SUCCESS) return nullptr;
    return find(device);
}

std::uint64_t now_ms() noexcept {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * 1000 + static_cast<std::uint64_t>(now.tv_nsec) / 1'000'000;
}

void reconcile(Device &device) noexcept {
    const int saved_errno = errno;
    device.measured_ms.store(now_ms(), std::memory_order_relaxed);
    const bool measured = device.ledger.reconcile([&]() noexcept {
        pools::look_again(device);
        return device.meter.held_by_process();
    });
    if (measured)
        device.blind.store(false, std::memory_order_relaxed);
    else if (device.contexts.load(std::memory_order_relaxed) > 0)
        device.blind.store(true, std::memory_order_relaxed);
    errno = saved_errno;
}

}  // namespace curb::shim::devices
