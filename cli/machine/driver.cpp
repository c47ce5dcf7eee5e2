#include "driver.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>

namespace curb::cli {

std::string Driver::text(CUresult result) const {
    const char *name = nullptr, *words = nullptr;
    if (!cuGetErrorName || cuGetErrorName(result, &name) != CUDA_SUCCESS || !name)
        return "error " + std::to_string(static_cast<int>(result));
    if (!cuGetErrorString || cuGetErrorString(result, &words) != CUDA_SUCCESS || !words) return name;
    return std::string(name) + " (" + words + ")";
}

policy::Result<Driver, std::string> load_driver() {
    // The CUDA_VISIBLE_DEVICES of this shell has nothing to do with the process in question.
    ::unsetenv("CUDA_VISIBLE_DEVICES");
    void *library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        const char *why = ::dlerror();
        return std::string(why ? why : "libcuda.so.1 cannot be loaded");
    }
    Driver driver;
#define CURB_FIND(name) driver.name = reinterpret_cast<decltype(&::name)>(::dlsym(library, #name));
    CURB_FIND(cuInit)
    CURB_FIND(cuDriverGetVersion)
    CURB_FIND(cuGetErrorName)
    CURB_FIND(cuGetErrorString)
    CURB_CHECKPOINT_CALLS(CURB_FIND)
#undef CURB_FIND
    if (!driver.cuInit) return std::string("the libcuda.so.1 that is found is none");
    if (driver.cuDriverGetVersion && driver.cuDriverGetVersion(&driver.version) != CUDA_SUCCESS) driver.version = 0;
#define CURB_THERE(name) &&driver.name != nullptr
    driver.has_checkpoint = true CURB_CHECKPOINT_CALLS(CURB_THERE);
#undef CURB_THERE
    return driver;
}

policy::Result<Driver, std::string> open_driver() {
    auto loaded = load_driver();
    if (!loaded) return "there is no CUDA driver (" + loaded.error() + "); run curb where the process runs";
    Driver &driver = loaded.value();
    if (!driver.has_checkpoint) return driver;
    if (const CUresult error = driver.cuInit(0); error != CUDA_SUCCESS)
        return "the CUDA driver cannot be initialised: " + driver.text(error) + "; see whether nvidia-smi works here";
    return driver;
}

}  // namespace curb::cli
