// Threads at the cap at once, in the loader, cancelled, and in a process that forks.

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>

#include "live.hpp"

using namespace scenario;

// Each thread takes a block or, every third time, frees its last one. tests/neighbours runs this too.
SCENARIO_NAMED(threads_never_take_more_than_the_cap_together) {
#ifdef CURB_SANITIZED
    constexpr int kTimes = 200;  // each takes ten times as long
#else
    constexpr int kTimes = 800;
#endif
    start();
    std::atomic<int> refused{0};
    in_threads(8, [&](unsigned number) {
        unsigned random = (number + 1) * 2654435761U;
        std::vector<CUdeviceptr> mine;
        for (int i = 0; i < kTimes; ++i) {
            random = random * 1664525U + 1013904223U;
            const std::uint64_t bytes = 1 + (std::uint64_t{random} >> 8) % (random & 1 ? 64 * MiB : 900 * KiB);
            CUdeviceptr block = 0;
            if ((random >> 20) % 3 == 0 && !mine.empty()) {
                MUST(cuMemFree_v2(mine.back()));
                mine.pop_back();
            } else if (const CUresult result = cuMemAlloc_v2(&block, bytes); result == CUDA_SUCCESS) {
                mine.push_back(block);
            } else {
                EXPECT_EQ(result, CUDA_ERROR_OUT_OF_MEMORY);
                ++refused;
            }
            EXPECT(curb_sim_held(0) <= kCap);
        }
        for (const CUdeviceptr block : mine) MUST(cuMemFree_v2(block));
    });
    EXPECT(refused > 0);  // else the test never hit the cap
    EXPECT(within(std::chrono::seconds(1), [] { return shown_held() == kContext; }));
}

// The blocks of a destroyed pool stay charged until the driver has freed them. Meanwhile another thread asks for blocks
// all the time, and there is room for only one.
SCENARIO_NAMED(pools_that_end_before_their_blocks_are_held_until_those_end) {
    constexpr std::uint64_t kBlock = 320 * MiB;
    const auto granted = [](CUresult result) {
        if (result != CUDA_SUCCESS) EXPECT_EQ(result, CUDA_ERROR_OUT_OF_MEMORY);
        return result == CUDA_SUCCESS;
    };
    const CUcontext context = start();
    {
        const std::jthread other([=](const std::stop_token &end) {
            MUST(cuCtxSetCurrent(context));
            while (!end.stop_requested()) {
                CUdeviceptr block = 0;
                if (granted(cuMemAlloc_v2(&block, kBlock))) MUST(cuMemFree_v2(block));
            }
        });
        const auto late = std::chrono::steady_clock::now() + std::chrono::seconds(3);
        for (int i = 0; i < 10'000 && std::chrono::steady_clock::now() < late; ++i) {
            const CUmemoryPool pool = make_pool();
            CUdeviceptr block = 0;
            const bool taken = granted(cuMemAllocFromPoolAsync(&block, kBlock, pool, nullptr));
            MUST(cuMemPoolDestroy(pool));
            if (taken) MUST(cuMemFreeAsync(block, nullptr));
            MUST(cuStreamSynchronize(nullptr));
        }
    }
    EXPECT(curb_sim_high(0) <= kCap);
    EXPECT_EQ(curb_sim_held(0), kContext);
    EXPECT(within(std::chrono::seconds(20), [] { return shown_held() == kContext; }));
}

namespace {

std::atomic<bool> loading{false}, asking{false};

}  // namespace

// One thread runs a library's constructor, under the loader's lock. Another thread's first use of a device makes curb
// open NVML, which waits for that lock. curb must then hold no lock that the constructor's own calls need.
SCENARIO_NAMED(a_library_that_uses_cuda_as_it_is_loaded_waits_for_no_other_thread) {
    MUST(cuInit(0));
    std::thread other([] {
        CUcontext context = nullptr;
        while (!loading) std::this_thread::yield();
        asking = true;
        MUST(cuDevicePrimaryCtxRetain(&context, 0));
    });
    void (*const at_load)() = [] {
        CUcontext context = nullptr;
        loading = true;
        while (!asking) std::this_thread::yield();
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        MUST(cuDevicePrimaryCtxRetain(&context, 0));
    };
    ::setenv("CURB_AT_LOAD", std::to_string(reinterpret_cast<std::uintptr_t>(at_load)).c_str(), 1);
    const std::filesystem::path beside = std::filesystem::read_symlink("/proc/self/exe").parent_path();
    EXPECT(dlopen((beside / "plugins/libplugin_at_load.so").c_str(), RTLD_NOW) != nullptr);
    other.join();
    EXPECT(loading);
    EXPECT_EQ(curb_sim_held(0), kContext);
}

namespace {

// True if the thread sleeps at each of three checks, 5 ms apart.
bool sleeps_on(pid_t thread) {
    for (int looks = 0; looks < 3; ++looks) {
        std::ifstream stat("/proc/self/task/" + std::to_string(thread) + "/stat");
        std::string pid, name, state;
        if (!(stat >> pid >> name >> state) || state != "S") return false;
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return true;
}

}  // namespace

// The waiting thread must sleep: with real-time priority, one that yields would keep the other from running.
SCENARIO_NAMED(the_end_of_a_pool_that_is_being_asked_is_slept_for) {
    const CUcontext context = start();
    const CUmemoryPool pool = make_pool();
    CUdeviceptr block = 0;
    MUST(cuMemAllocFromPoolAsync(&block, MiB, pool, nullptr));
    const std::uint64_t asked = curb_sim_calls("cuMemPoolGetAttribute");
    curb_sim_hold_up("cuMemPoolGetAttribute", 1, 1000);
    std::thread asker([=] {
        MUST(cuCtxSetCurrent(context));
        MUST(cuMemPoolTrimTo(pool, 0));  // after which curb asks the pool what it has
    });
    EXPECT(within(std::chrono::seconds(10), [=] { return curb_sim_calls("cuMemPoolGetAttribute") > asked; }));
    std::atomic<pid_t> waits{0};
    std::thread destroying([&] {
        MUST(cuCtxSetCurrent(context));
        waits = gettid();
        MUST(cuMemPoolDestroy(pool));
    });
    EXPECT(within(std::chrono::milliseconds(900), [&] { return waits != 0 && sleeps_on(waits); }));
    asker.join();
    destroying.join();
}

namespace {

// Trims the pool in a thread. curb then reads the sizes of all pools, and the driver holds its first answer back until
// `meanwhile` has ended.
template <class Meanwhile>
void while_pools_are_read(CUmemoryPool pool, Meanwhile meanwhile) {
    const std::uint64_t asked = curb_sim_calls("cuMemPoolGetAttribute");
    curb_sim_hold_return("cuMemPoolGetAttribute");
    const Threads reader(1, [=](unsigned) { MUST(cuMemPoolTrimTo(pool, 0)); });
    EXPECT(within(std::chrono::seconds(10), [=] { return curb_sim_calls("cuMemPoolGetAttribute") > asked; }));
    meanwhile();
    curb_sim_hold_return(nullptr);
}

// Allocates from each pool, then frees: the driver has the memory back, and curb has not read the pools since.
void use_and_empty(const std::vector<CUmemoryPool> &pools) {
    std::vector<CUdeviceptr> blocks(pools.size());
    for (std::size_t i = 0; i < pools.size(); ++i) MUST(cuMemAllocFromPoolAsync(&blocks[i], MiB, pools[i], nullptr));
    EXPECT_EQ(shown_held(), kContext + pools.size() * 32 * MiB);
    for (const CUdeviceptr block : blocks) MUST(cuMemFreeAsync(block, nullptr));
    MUST(cuStreamSynchronize(nullptr));
    EXPECT_EQ(curb_sim_held(0), kContext);
}

}  // namespace

// One thread begins to read two pools, and another one finds them empty. Both grow before the first one has the size
// of the first pool. NVML does not list the process here and below: else the overhead would be lower by what curb
// charges too much.
SCENARIO_NAMED(pools_that_grow_while_two_threads_find_them_empty_are_still_credited) {
    start();
    const std::vector<CUmemoryPool> pools{make_pool(), make_pool()};
    CUdeviceptr blocks[2] = {};
    use_and_empty(pools);
    while_pools_are_read(pools[0], [&] {
        MUST(cuMemPoolTrimTo(pools[0], 0));
        for (const int i : {0, 1}) MUST(cuMemAllocFromPoolAsync(&blocks[i], MiB, pools[i], nullptr));
    });
    EXPECT_EQ(shown_held(), kContext + 64 * MiB);
    for (const CUdeviceptr block : blocks) MUST(cuMemFreeAsync(block, nullptr));
    MUST(cuStreamSynchronize(nullptr));
    MUST(cuMemPoolTrimTo(pools[0], 0));
    EXPECT_EQ(shown_held(), kContext);
    use_and_empty(pools);
    MUST(cuMemPoolTrimTo(pools[0], 0));
    EXPECT_EQ(shown_held(), kContext);
}

// A new pool gets the record of one that was destroyed while another thread read its size.
SCENARIO_NAMED(a_pool_with_the_record_of_one_that_ended_while_it_was_read_is_credited) {
    const CUcontext context = start();
    const CUmemoryPool pool = make_pool();
    use_and_empty({pool});
    CUdeviceptr block = 0;
    std::atomic<pid_t> waits{0};
    std::thread destroying;
    while_pools_are_read(pool, [&] {
        MUST(cuMemAllocFromPoolAsync(&block, MiB, pool, nullptr));
        destroying = std::thread([&waits, context, pool] {
            MUST(cuCtxSetCurrent(context));
            waits = gettid();
            MUST(cuMemPoolDestroy(pool));
        });
        EXPECT(within(std::chrono::seconds(10), [&] { return waits != 0 && sleeps_on(waits); }));
    });
    destroying.join();
    MUST(cuMemFreeAsync(block, nullptr));
    MUST(cuStreamSynchronize(nullptr));
    const CUmemoryPool next = make_pool();
    use_and_empty({next});
    MUST(cuMemPoolTrimTo(next, 0));
    EXPECT_EQ(shown_held(), kContext);
}

// A program may have thousands of pools, most of them without memory.
SCENARIO_NAMED(pools_without_memory_are_not_asked) {
    start();
    constexpr int kPools = 200;
    std::vector<CUmemoryPool> pools;
    for (int i = 0; i < kPools; ++i) {
        pools.push_back(make_pool());
        CUdeviceptr block = 0;
        MUST(cuMemAllocFromPoolAsync(&block, MiB, pools.back(), nullptr));
        MUST(cuMemFreeAsync(block, nullptr));
        MUST(cuStreamSynchronize(nullptr));
    }
    std::uint64_t asked = curb_sim_calls("cuMemPoolGetAttribute");
    const auto asked_meanwhile = [&] {
        const std::uint64_t before = asked;
        asked = curb_sim_calls("cuMemPoolGetAttribute");
        return asked - before;
    };
    take(344 * MiB);  // near the cap each request measures first
    asked_meanwhile();
    take(2 * MiB);
    EXPECT(asked_meanwhile() < kPools / 10);
    for (const CUmemoryPool pool : pools) MUST(cuMemPoolDestroy(pool));
    EXPECT(asked_meanwhile() < kPools * 10);
    EXPECT_EQ(curb_sim_held(0), kContext + 346 * MiB);
    EXPECT_EQ(shown_held(), kContext + 346 * MiB);
}

namespace {

// Runs `body` in a thread and cancels it once `when` is true. Returns the thread's result.
void *end_of_a_thread_cancelled(void *(*body)(void *), void *argument, const std::function<bool()> &when) {
    pthread_t thread{};
    void *end = nullptr;
    EXPECT_EQ(pthread_create(&thread, nullptr, body, argument), 0);
    EXPECT(within(std::chrono::seconds(10), when));
    EXPECT_EQ(pthread_cancel(thread), 0);
    EXPECT_EQ(pthread_join(thread, &end), 0);
    return end;
}

}  // namespace

// growth.wait: 1s. LOG: curb's log file.
SCENARIO_NAMED(a_thread_that_is_cancelled_while_curb_works_ends_alone) {
    CUcontext context = start();
    const CUdeviceptr most = take(300 * MiB);
    static const auto ask_for_too_much = [](void *current) {
        CUdeviceptr pointer = 0;
        MUST(cuCtxSetCurrent(static_cast<CUcontext>(current)));
        EXPECT_EQ(cuMemAlloc_v2(&pointer, 300 * MiB), CUDA_ERROR_OUT_OF_MEMORY);
    };
    // Without a variable of its own: AddressSanitizer keeps poisoned what is around those of a frame that a
    // cancellation unwinds, and the thread's end would meet it.
    const auto asks_for_too_much = [](void *current) -> void * {
        ask_for_too_much(current);
        pthread_testcancel();
        return nullptr;
    };
    EXPECT(end_of_a_thread_cancelled(asks_for_too_much, context,
                                     [] { return log_says(" on cuda:0 waits (at most "); }) == PTHREAD_CANCELED);
    EXPECT(log_says("refused 300 MiB"));
    MUST(cuMemFree_v2(most));
    EXPECT_EQ(shown_held(), kContext);
}

SCENARIO_NAMED(a_fork_child_waits_for_nothing_that_its_parents_threads_were_doing) {
    const CUcontext context = start();
    const AllocatingGraph graph(32 * MiB);
    std::atomic<bool> ending{false};
    std::vector<std::thread> threads;
    const auto again_and_again = [&](std::function<void()> what) {
        threads.emplace_back([&ending, context, what = std::move(what)] {
            MUST(cuCtxSetCurrent(context));
            while (!ending) what();
        });
    };
    again_and_again([context] { cuCtxEnablePeerAccess(context, 0); });
    again_and_again([&graph] { cuGraphUpload(graph.executable, nullptr); });
    for (int children = 0; children < 300; ++children) {
        const int status = status_of_child([&] {
            alarm(30);  // ends one that hangs
            const bool passes = cuGraphExecDestroy(graph.executable) == CUDA_ERROR_NOT_INITIALIZED &&
                                cuCtxDestroy_v2(context) == CUDA_ERROR_NOT_INITIALIZED &&
                                cuDevicePrimaryCtxRelease_v2(0) == CUDA_ERROR_NOT_INITIALIZED;
            if (!passes) _exit(1);
        });
        EXPECT_EQ(status, 0);
        if (status != 0) break;
    }
    ending = true;
    for (std::thread &thread : threads) thread.join();
}
