#include "driver.hpp"

#include <dlfcn.h>

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

}  // namespace bench
