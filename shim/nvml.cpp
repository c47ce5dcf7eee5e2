#include "nvml.hpp"

#include <dlfcn.h>

#include <atomic>
#include <mutex>
#include <type_traits>

#include "keep_errno.hpp"
#include "real_libc.hpp"

namespace curb::shim::nvml {
namespace {

constexpr const char *kLibrary = "libnvidia-ml.so.1";

bool find(Functions &functions) noexcept {
    void *library = dlopen(kLibrary, RTLD_LAZY | RTLD_LOCAL);
    if (!library) library = dlopen(kLibrary, RTLD_LAZY | RTLD_LOCAL);  // it may have lacked memory for a moment
    if (!library) {
        dlerror();
        return false;
    }
    const auto look_up = [&](auto &slot, const char *name) {
        slot = reinterpret_cast<std::remove_reference_t<decltype(slot)>>(real::dlsym()(library, name));
    };
    look_up(functions.init, "nvmlInit_v2");
    look_up(functions.by_uuid, "nvmlDeviceGetHandleByUUID");
    look_up(functions.index, "nvmlDeviceGetIndex");
    look_up(functions.memory, "nvmlDeviceGetMemoryInfo");
    look_up(functions.processes, "nvmlDeviceGetComputeRunningProcesses_v3");
    // Drivers before 510 have the same call under its older name, with the same layout.
    if (!functions.processes) look_up(functions.processes, "nvmlDeviceGetComputeRunningProcesses_v2");
    look_up(functions.utilization, "nvmlDeviceGetProcessUtilization");
    dlerror();
    return functions.init && functions.by_uuid && functions.index && functions.memory && functions.processes &&
           functions.init() == NVML_SUCCESS;
}

constinit Functions the_functions;
constinit bool usable = false;
constinit std::once_flag once;
constinit std::atomic<bool> known{false};

}  // namespace

// Loaded under no lock of curb's: the loader runs constructors under its own, and one that uses CUDA would wait here
// for a thread that waits there. Two threads may load it at once; the library counts.
const Functions *functions() noexcept {
    if (!known.load(std::memory_order_acquire)) {
        Functions found;
        const bool works = find(found);
        std::call_once(once, [&] {
            the_functions = found;
            usable = works;
            known.store(true, std::memory_order_release);
        });
    }
    return usable ? &the_functions : nullptr;
}

void load() noexcept {
    if (!dlopen(kLibrary, RTLD_LAZY | RTLD_LOCAL)) dlerror();
}

void *loaded(const char *symbol) noexcept {
    const KeepErrno keep_errno;
    void *library = dlopen(kLibrary, RTLD_LAZY | RTLD_NOLOAD);
    if (!library) {
        dlerror();
        return nullptr;
    }
    void *found = real::dlsym()(library, symbol);
    if (!found) dlerror();
    dlclose(library);  // only the reference that this look took
    return found;
}

}  // namespace curb::shim::nvml
