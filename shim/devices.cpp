#include "devices.hpp"

#include <algorithm>
#include <ctime>

#include "keep_errno.hpp"
#include "pools.hpp"
#include "process.hpp"
#include "real_libc.hpp"
#include "trace.hpp"

namespace curb::shim::devices {
namespace {

// Leaked with the process: threads may still call the driver while it exits.
constinit std::array<Device, kMost> all{};
constinit int known = 0;
constinit std::atomic<int> all_contexts{0};
constinit real::ClockGettime *clock = nullptr;  // found once: now_ms() is on the way of every request

int attribute(CUdevice_attribute which, CUdevice device) noexcept {
    int value = 0;
    const auto ask = [&] { return driver().cuDeviceGetAttribute(&value, which, device); };
    return insist(ask) == CUDA_SUCCESS ? value : 0;
}

}  // namespace

void discover() noexcept {
    clock = real::clock_gettime();
    const Driver &cuda = driver();
    int count = 0;
    if (insist([&] { return cuda.cuDeviceGetCount(&count); }) != CUDA_SUCCESS) return;
    for (int ordinal = 0; ordinal < count && ordinal < kMost; ++ordinal) {
        Device &device = all[static_cast<std::size_t>(ordinal)];
        device.ordinal = ordinal;
        std::size_t total = 0;
        insist([&] { return cuda.cuDeviceTotalMem_v2(&total, ordinal); });
        device.total = total;
        insist(
            [&] { return cuda.cuDeviceGetPCIBusId(device.pci.data(), static_cast<int>(device.pci.size()), ordinal); });
        insist([&] {
            return cuda.cuDeviceGetName(device.model.data(), static_cast<int>(device.model.size()) - 1, ordinal);
        });
        device.resident_threads =
            static_cast<Bytes>(attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, ordinal)) *
            static_cast<Bytes>(attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, ordinal));
        // The newer form tells the UUID of a MIG instance, the older one always that of the GPU.
        CUuuid gpu{}, own{};
        insist([&] { return cuda.cuDeviceGetUuid(&gpu, ordinal); });
        if (insist([&] { return cuda.cuDeviceGetUuid_v2(&own, ordinal); }) != CUDA_SUCCESS) own = gpu;
        device.meter.identify(gpu, own, total != 0 ? total : ~Bytes{0});
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
    if (!process::active()) return nullptr;
    return insist([&] { return driver().cuCtxGetDevice(&device); }) == CUDA_SUCCESS ? find(device) : nullptr;
}

std::uint64_t now_ms() noexcept {
    timespec now{};
    clock(CLOCK_MONOTONIC_COARSE, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * 1000 + static_cast<std::uint64_t>(now.tv_nsec) / 1'000'000;
}

namespace {

std::uint64_t now_us() noexcept {
    timespec now{};
    clock(CLOCK_MONOTONIC, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000 + static_cast<std::uint64_t>(now.tv_nsec) / 1000;
}

}  // namespace

bool in_use(const Device &device) noexcept {
    return device.contexts.load(std::memory_order_relaxed) > 0 || device.ledger.held() > 0;
}

bool are_old() noexcept {
    constexpr std::uint64_t kOldMs = 1000;
    for (int ordinal = 0; ordinal < known; ++ordinal)
        if (in_use(at(ordinal)) && now_ms() - at(ordinal).measured_ms.load(std::memory_order_relaxed) >= kOldMs)
            return true;
    return false;
}

namespace {

void reconcile(Device &device, int attempts) noexcept {
    const KeepErrno keep_errno;
    const std::uint64_t began_us = now_us();
    device.measured_ms.store(now_ms(), std::memory_order_relaxed);
    device.changed.store(false, std::memory_order_relaxed);
    // Counted first: a thread that no longer sees `grown` sees that it is being measured.
    device.measuring_growth.fetch_add(1, std::memory_order_seq_cst);
    const bool grown =
        device.grown.load(std::memory_order_relaxed) && device.grown.exchange(false, std::memory_order_seq_cst);
    if (!grown) device.measuring_growth.fetch_sub(1, std::memory_order_seq_cst);
    const bool measured = device.ledger.reconcile(
        [&]() noexcept {
            pools::look_again(device);
            return device.meter.held_by_process();
        },
        [&](std::int64_t change) noexcept { trace::books(device, Kind::overhead, change); }, attempts);
    if (measured)
        device.blind.store(false, std::memory_order_relaxed);
    else if (device.contexts.load(std::memory_order_relaxed) > 0)
        device.blind.store(true, std::memory_order_relaxed);
    device.figure_us.store(began_us, std::memory_order_relaxed);
    if (grown) device.measuring_growth.fetch_sub(1, std::memory_order_seq_cst);
}

}  // namespace

void reconcile(Device &device) noexcept { reconcile(device, Ledger::kAttempts); }

void reconcile_unless_fresh(Device &device) noexcept {
    constexpr std::uint64_t kFreshUs = 1000;
    const bool alone = device.measuring.fetch_add(1, std::memory_order_seq_cst) == 0;
    const bool is_fresh = !device.grown.load(std::memory_order_seq_cst) &&
                          device.measuring_growth.load(std::memory_order_seq_cst) == 0 &&
                          now_us() - device.figure_us.load(std::memory_order_relaxed) < kFreshUs;
    // Among others one attempt is enough: it raises the overhead, and a refusal is measured once more.
    if (alone || !is_fresh) reconcile(device, alone ? Ledger::kAttempts : 1);
    device.measuring.fetch_sub(1, std::memory_order_seq_cst);
}

void look_around(Device &device) noexcept {
    const KeepErrno keep_errno;
    // The process's figure on both sides of the other: whatever another thread takes or gives back in between, the sum
    // is then at most too low.
    const auto held = [&] { return device.meter.held_by_process().value_or(device.ledger.held()); };
    device.reach_ms.store(now_ms(), std::memory_order_relaxed);
    const Bytes before = held();
    const auto free = device.meter.free();
    if (free) device.reach.store(policy::added(std::min(before, held()), *free), std::memory_order_relaxed);
}

void look_again_soon(Device &device) noexcept {
    device.grown.store(true, std::memory_order_relaxed);
    device.changed.store(true, std::memory_order_relaxed);
}

void look_for_returned_soon(Device &device) noexcept { device.changed.store(true, std::memory_order_relaxed); }

void context_made(Device &device) noexcept {
    device.contexts.fetch_add(1, std::memory_order_relaxed);
    all_contexts.fetch_add(1, std::memory_order_relaxed);
}

bool context_gone(Device &device) noexcept {
    all_contexts.fetch_sub(1, std::memory_order_relaxed);
    return device.contexts.fetch_sub(1, std::memory_order_relaxed) == 1;
}

int contexts() noexcept { return all_contexts.load(std::memory_order_relaxed); }

}  // namespace curb::shim::devices
