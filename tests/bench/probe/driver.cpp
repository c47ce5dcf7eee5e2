#include "driver.hpp"

#include <dlfcn.h>

#include <cstdint>

namespace bench {

namespace {

Driver load() {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) throw Cannot("there is no libcuda.so.1");
    Driver found;
#define BENCH_FIND(name)                                                     \
    found.name = reinterpret_cast<decltype(&::name)>(dlsym(library, #name)); \
    if (!found.name) throw Cannot("this driver has no " #name);
    BENCH_FUNCTIONS(BENCH_FIND)
#undef BENCH_FIND
    must(found.cuInit(0), "cuInit");
    must(found.cuDevicePrimaryCtxRetain(&found.context, 0), "cuDevicePrimaryCtxRetain");
    return found;
}

}  // namespace

const Driver &driver() {
    static const Driver found = load();
    thread_local const bool current = [] {
        must(found.cuCtxSetCurrent(found.context), "cuCtxSetCurrent");
        return true;
    }();
    static_cast<void>(current);
    return found;
}

CUmemoryPool default_pool() {
    CUmemoryPool pool = nullptr;
    must(driver().cuDeviceGetDefaultMemPool(&pool, 0), "cuDeviceGetDefaultMemPool");
    return pool;
}

void keep_in_pool() {
    std::uint64_t all = ~std::uint64_t{0};
    must(driver().cuMemPoolSetAttribute(default_pool(), CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all),
         "cuMemPoolSetAttribute");
}

}  // namespace bench
