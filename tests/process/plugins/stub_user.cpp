// A library that calls the driver by references: linked with stubs of the driver, or with nothing.
#include <dlfcn.h>

#include <atomic>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "abi/cuda_abi.h"
#include "abi/nvml_abi.h"

extern "C" {
#pragma weak cuInit
#pragma weak cuDevicePrimaryCtxRetain
#pragma weak cuDeviceGetCount
#pragma weak cuMemAlloc_v2
#pragma weak nvmlDeviceGetMemoryInfo
}

namespace {

std::string init() { return cuInit ? std::to_string(cuInit(0)) : "no cuInit"; }

// Allocates 512 MiB twice.
std::string allocate() {
    CUcontext context = nullptr;
    CUdeviceptr block = 0;
    std::string results = std::to_string(cuDevicePrimaryCtxRetain(&context, 0));
    // curb does not export this function. Takes the driver's, which is loaded by now.
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (driver) reinterpret_cast<CUresult (*)(CUcontext)>(dlsym(driver, "cuCtxSetCurrent"))(context);
    for (int i = 0; i < 2; ++i) results += ' ' + std::to_string(cuMemAlloc_v2(&block, 512U << 20));
    return results;
}

// Asks very often for what curb has no hook. Returns each answer once.
std::string repeat() {
    std::set<CUresult> results;
    int count = 0;
    for (int i = 0; i < 100; ++i) results.insert(cuDeviceGetCount(&count));
    std::string text;
    for (const CUresult result : results) text += std::to_string(result) + ' ';
    return text;
}

// Makes the program's first call in eight threads at once.
std::string crowd() {
    constexpr int kThreads = 8;
    std::atomic<int> ready{0};
    std::vector<CUresult> results(kThreads);
    std::vector<std::thread> threads;
    for (CUresult &result : results)
        threads.emplace_back([&] {
            for (++ready; ready.load() < kThreads;) std::this_thread::yield();
            result = cuInit(0);
        });
    for (std::thread &thread : threads) thread.join();
    std::string text;
    for (const CUresult result : results) text += std::to_string(result) + ' ';
    return text;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const char *plugin_answer(const char *asked) {
    static std::string answer;
    const std::string verb = asked;
    nvmlMemory_t memory{};
    answer = verb == "init"       ? init()
             : verb == "allocate" ? allocate()
             : verb == "crowd"    ? crowd()
             : verb == "repeat"   ? repeat()
             : verb == "default"  ? (dlsym(RTLD_DEFAULT, "cuInit") ? "there" : "none")
             : verb == "nvml"     ? std::to_string(nvmlDeviceGetMemoryInfo(nullptr, &memory))
                                  : "nothing asked";
    return answer.c_str();
}
