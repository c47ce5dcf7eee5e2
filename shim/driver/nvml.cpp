#include "driver/nvml.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <type_traits>

#include "base/keep_errno.hpp"
#include "host/clock.hpp"
#include "host/real_libc.hpp"

namespace curb::shim::nvml {
namespace {

constexpr const char *kLibrary = "libnvidia-ml.so.1";

// Returns null if it cannot be opened, and then leaves no error in dlerror().
void *opened(int how) noexcept {
    void *library = dlopen(kLibrary, RTLD_LAZY | RTLD_NODELETE | how);  // as libcuda: curb keeps addresses of it
    if (!library) dlerror();
    return library;
}

bool find(Functions &functions) noexcept {
    void *library = opened(RTLD_LOCAL);
    if (!library) library = opened(RTLD_LOCAL);  // the first may have lacked memory
    if (!library) return false;
    const auto look_up = [&](auto &slot, const char *name) {
        slot = reinterpret_cast<std::remove_reference_t<decltype(slot)>>(real::dlsym()(library, name));
    };
    look_up(functions.init, "nvmlInit_v2");
    look_up(functions.by_uuid, "nvmlDeviceGetHandleByUUID");
    look_up(functions.index, "nvmlDeviceGetIndex");
    look_up(functions.memory, "nvmlDeviceGetMemoryInfo");
    look_up(functions.processes, "nvmlDeviceGetComputeRunningProcesses_v3");
    // Drivers before 510 export only _v2, with the same layout.
    if (!functions.processes) look_up(functions.processes, "nvmlDeviceGetComputeRunningProcesses_v2");
    look_up(functions.utilization, "nvmlDeviceGetProcessUtilization");
    look_up(functions.memory_limits, "nvmlDeviceGetMemoryLimits_v1");
    dlerror();
    return functions.init && functions.by_uuid && functions.index && functions.memory && functions.processes;
}

// A failure may be temporary. Retries come after 1 s, then after twice the last pause, up to 60 s.
constexpr std::uint64_t kSoonestMs = 1000, kLatestMs = 60'000;

struct Nvml {
    std::atomic<bool> is_loaded{false}, is_usable{false};  // `functions` can be read; called
    Functions functions;
    // Guards `functions` while they are found, and the times.
    std::mutex mutex;
    std::uint64_t next_try_ms = 0, pause_ms = kSoonestMs;

    bool is_due() noexcept {
        const std::scoped_lock lock(mutex);
        return now_ms() >= next_try_ms;
    }
    void try_later() noexcept {
        const std::scoped_lock lock(mutex);
        next_try_ms = now_ms() + pause_ms;
        pause_ms = std::min(2 * pause_ms, kLatestMs);
    }
    void publish(const Functions &found) noexcept {
        const std::scoped_lock lock(mutex);
        if (!is_loaded) functions = found;
        is_loaded = true;
    }
};
constinit Nvml the_nvml;

}  // namespace

// Holds no lock of curb's while loading: the loader runs constructors under its own lock, and one that uses CUDA would
// deadlock with us. Two threads may load NVML at once; the loader counts references.
bool ensure_loaded() noexcept {
    if (the_nvml.is_usable) return true;
    if (!the_nvml.is_due()) return false;
    if (the_nvml.is_loaded) return true;
    Functions found;
    const bool is_found = find(found);
    is_found ? the_nvml.publish(found) : the_nvml.try_later();
    return is_found;
}

bool has_memory_limits() noexcept { return the_nvml.is_usable && the_nvml.functions.memory_limits; }

void wait_for_loader() noexcept {
    if (void *library = opened(RTLD_NOLOAD)) dlclose(library);
}

const Functions *functions() noexcept {
    if (the_nvml.is_usable) return &the_nvml.functions;
    if (!ensure_loaded()) return nullptr;
    if (the_nvml.functions.init() != NVML_SUCCESS) {
        the_nvml.try_later();
        return nullptr;
    }
    the_nvml.is_usable = true;
    return &the_nvml.functions;
}

void load() noexcept { opened(RTLD_LOCAL); }

void *loaded(const char *symbol) noexcept {
    const KeepErrno keep_errno;
    void *library = opened(RTLD_NOLOAD);
    if (!library) return nullptr;
    void *found = real::dlsym()(library, symbol);
    if (!found) dlerror();
    dlclose(library);  // drop the reference taken above
    return found;
}

}  // namespace curb::shim::nvml
