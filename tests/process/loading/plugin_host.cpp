// plugin_host [CUDA | init | none]: makes a context, only initialises the driver, or does neither; then prints "ready".
// Each line of input is HOW PATH: opens the library that way, calls its plugin_allocates() and prints the result. Or it
// is close NUMBER: closes libcuda so often, and prints the result of a call of the driver.
#include <dlfcn.h>

#include <iostream>
#include <string>

#include "abi/cuda_abi.h"

namespace {

void *opened(const std::string &how, const std::string &path) {
    if (how == "deep") return dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    if (how == "lazy") return dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL | RTLD_DEEPBIND);
    if (how == "apart") return dlmopen(LM_ID_NEWLM, path.c_str(), RTLD_NOW | RTLD_LOCAL);
    return dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
}

void *driver = nullptr;
decltype(&cuMemAlloc_v2) allocate = nullptr;

// By look-up: like the frameworks, this program is not linked with the driver.
bool use_cuda(bool make_context) {
    driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (!driver) return false;
    allocate = reinterpret_cast<decltype(allocate)>(dlsym(driver, "cuMemAlloc_v2"));
    const auto init = reinterpret_cast<decltype(&cuInit)>(dlsym(driver, "cuInit"));
    const auto retain =
        reinterpret_cast<decltype(&cuDevicePrimaryCtxRetain)>(dlsym(driver, "cuDevicePrimaryCtxRetain"));
    const auto set = reinterpret_cast<decltype(&cuCtxSetCurrent)>(dlsym(driver, "cuCtxSetCurrent"));
    CUcontext context = nullptr;
    if (init(0) != CUDA_SUCCESS) return false;
    return !make_context || (retain(&context, 0) == CUDA_SUCCESS && set(context) == CUDA_SUCCESS);
}

}  // namespace

int main(int argc, char **argv) {
    const std::string use = argc == 2 ? argv[1] : "none";
    if (use != "none" && !use_cuda(use == "CUDA")) return 1;
    std::cout << "ready" << std::endl;
    for (std::string line; std::getline(std::cin, line);) {
        const std::size_t blank = line.find(' ');
        if (line.starts_with("close ")) {
            for (int i = std::stoi(line.substr(blank)); i > 0; --i) dlclose(driver);
            CUdeviceptr block = 0;
            std::cout << allocate(&block, 1 << 20) << std::endl;
            continue;
        }
        void *library = opened(line.substr(0, blank), line.substr(blank + 1));
        const bool call = line.substr(0, blank) != "lazy";  // "lazy" leaves the library's slots unbound
        const auto allocates = library ? reinterpret_cast<int (*)()>(dlsym(library, "plugin_allocates")) : nullptr;
        if (!allocates)
            std::cout << dlerror() << std::endl;
        else
            std::cout << (call ? allocates() : 0) << std::endl;
    }
}
