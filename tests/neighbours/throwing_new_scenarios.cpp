// A host with an operator new of its own, which counts its calls and throws if libcurb.so calls it. libcurb.so contains
// its own libstdc++, so it must never call the host's.
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <new>

#include "../process/helpers/memory.hpp"

using namespace scenario;

namespace {

constinit std::atomic<int> calls{0}, trespasses{0};

void *get(std::size_t bytes, void *caller) {
    calls.fetch_add(1, std::memory_order_relaxed);
    Dl_info info{};
    static thread_local bool asking = false;  // dladdr may allocate
    if (!asking) {
        asking = true;
        const bool found = dladdr(caller, &info) != 0;
        asking = false;
        const char *name = found && info.dli_fname ? std::strrchr(info.dli_fname, '/') : nullptr;
        if (name && std::strcmp(name, "/libcurb.so") == 0) {
            trespasses.fetch_add(1, std::memory_order_relaxed);
            throw std::bad_alloc();
        }
    }
    void *block = std::malloc(bytes);
    if (!block) throw std::bad_alloc();
    return block;
}

}  // namespace

void *operator new(std::size_t bytes) { return get(bytes, __builtin_return_address(0)); }
void *operator new[](std::size_t bytes) { return get(bytes, __builtin_return_address(0)); }
void operator delete(void *block) noexcept { std::free(block); }
void operator delete(void *block, std::size_t) noexcept { std::free(block); }
void operator delete[](void *block) noexcept { std::free(block); }
void operator delete[](void *block, std::size_t) noexcept { std::free(block); }

SCENARIO_NAMED(operator_new_is_the_hosts) {
    start();
    const int before = calls;
    int *volatile one = new int;  // volatile, so that the compiler leaves the pair in
    delete one;
    EXPECT(calls > before);
    fill([] {
        CUdeviceptr block = 0;
        return cuMemAlloc_v2(&block, 16 * MiB);
    });
    raise(SIGUSR1);
    EXPECT(within(std::chrono::seconds(20), [] { return shown_held() == curb_sim_held(0); }));
    EXPECT_EQ(trespasses.load(), 0);
}
