// Pools far from the cap: for most requests curb queries neither the pool's size nor the device's current pool.

#include <atomic>

#include "../../bench/probe/symbols.hpp"
#include "live.hpp"

using namespace scenario;

namespace {

std::uint64_t questions() { return curb_sim_calls("cuDeviceGetMemPool") + curb_sim_calls("cuMemPoolGetAttribute"); }

void make_pairs(int count, std::uint64_t bytes = 4 * KiB) {
    for (int i = 0; i < count; ++i) {
        CUdeviceptr block = 0;
        MUST(cuMemAllocAsync(&block, bytes, nullptr));
        MUST(cuMemFreeAsync(block, nullptr));
    }
}

}  // namespace

SCENARIO_NAMED(a_pool_that_keeps_its_memory_is_asked_for_its_size_only_now_and_then) {  // under a cap of 16 GiB
    start();
    keep_everything(default_pool());
    make_pairs(100);
    const std::uint64_t before = questions();
    make_pairs(1600);
    EXPECT(questions() - before <= 3 * 1600 / 10);  // the current pool, its size, its threshold
    // cuMemGetInfo reads the pool first.
    std::vector<CUdeviceptr> blocks(60);
    for (CUdeviceptr &block : blocks) {
        MUST(cuMemAllocAsync(&block, 20 * MiB, nullptr));
        EXPECT_EQ(shown_held(), curb_sim_held(0));
    }
    for (const CUdeviceptr block : blocks) MUST(cuMemFreeAsync(block, nullptr));
    MUST(cuCtxSynchronize());
    MUST(cuMemPoolTrimTo(default_pool(), 0));
    EXPECT_EQ(shown_held(), kContext);
    make_pairs(1, 20 * MiB);
    EXPECT_EQ(shown_held(), curb_sim_held(0));
    EXPECT_EQ(shown_held(), kContext + 32 * MiB);
}

SCENARIO_NAMED(a_pool_that_is_set_without_curb_is_charged_from_its_first_block) {  // under a cap of 16 GiB
    start();
    keep_everything(default_pool());
    make_pairs(50);
    const CUmemoryPool other = make_pool();
    keep_everything(other);
    const auto set = reinterpret_cast<decltype(&cuDeviceSetMemPool)>(own_symbol("libcuda.so.1", "cuDeviceSetMemPool"));
    EXPECT(set != nullptr && set != &cuDeviceSetMemPool);
    MUST(set(0, other));
    std::vector<CUdeviceptr> blocks(20);
    for (CUdeviceptr &block : blocks) {
        MUST(cuMemAllocAsync(&block, 30 * MiB, nullptr));
        EXPECT_EQ(shown_held(), curb_sim_held(0));
    }
    // Sets the earlier pool through curb, and the other one again.
    for (const CUmemoryPool pool : {default_pool(), other}) {
        MUST(cuDeviceSetMemPool(0, pool));
        MUST(cuMemAllocAsync(&blocks.emplace_back(), 30 * MiB, nullptr));
        EXPECT_EQ(shown_held(), curb_sim_held(0));
    }
    for (const CUdeviceptr block : blocks) MUST(cuMemFreeAsync(block, nullptr));
    MUST(cuCtxSynchronize());
    MUST(cuMemPoolDestroy(other));  // the default pool is current again
    make_pairs(50);
    EXPECT(within(std::chrono::seconds(1), [] { return shown_held() == curb_sim_held(0); }));
}

SCENARIO_NAMED(a_lowered_cap_holds_for_the_next_request_to_a_pool) {  // of a policy with a cap of 16 GiB
    start();
    keep_everything(default_pool());
    make_pairs(20);
    edit(policy_with_cap("768MiB"));
    EXPECT(within(std::chrono::seconds(5), [] { return shown_total() == 768 * MiB; }));
    CUdeviceptr block = 0;
    CUresult result = CUDA_SUCCESS;
    for (int i = 0; i < 20 && result == CUDA_SUCCESS; ++i) result = cuMemAllocAsync(&block, 30 * MiB, nullptr);
    EXPECT_EQ(result, CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT(curb_sim_high(0) <= 768 * MiB);
}

// The device is measured while the driver serves a request that has taken a unit ahead. The pool has grown by then, and
// curb must count neither this growth twice nor the driver's own memory too low.
SCENARIO_NAMED(a_request_ahead_that_is_under_way_does_not_hide_the_drivers_own_memory) {  // under a cap of 16 GiB
    start();
    keep_everything(default_pool());
    load_module("curb-sim-module global=512MiB\n");
    const std::uint64_t code = curb_sim_held(0) - kContext;
    make_pairs(20);
    CUdeviceptr first = 0, second = 0;
    MUST(cuMemAllocAsync(&first, 30 * MiB, nullptr));
    const std::uint64_t before = curb_sim_held(0);
    curb_sim_hold_return("cuMemAllocAsync");
    {
        const Threads thread(1, [&](unsigned) { MUST(cuMemAllocAsync(&second, 30 * MiB, nullptr)); });
        EXPECT(within(std::chrono::seconds(20), [=] { return curb_sim_held(0) > before; }));
        const unsigned lists = curb_sim_process_lists();
        const auto measured = [=] { return shown_held(code) != 0 && curb_sim_process_lists() > lists + 1; };
        EXPECT(within(std::chrono::seconds(5), measured));
        EXPECT_EQ(shown_held(code), curb_sim_held(0));
        curb_sim_hold_return(nullptr);
    }
    EXPECT_EQ(shown_held(code), curb_sim_held(0));
}

// curb reserves ahead for threads that use one small block each. A large request must get what they do not use.
SCENARIO_NAMED(a_large_request_gets_what_was_reserved_ahead_of_others) {  // under a cap of 8 GiB
    constexpr int kThreads = 4;
    start();
    keep_everything(default_pool());
    std::atomic<bool> done{false};
    const Threads threads(kThreads, [&](unsigned) {
        const CUstream stream = make_stream();
        while (!done) {
            CUdeviceptr block = 0;
            MUST(cuMemAllocAsync(&block, 4 * KiB, stream));
            MUST(cuMemFreeAsync(block, stream));
        }
    });
    for (int i = 0; i < 200; ++i) {
        std::this_thread::sleep_for(std::chrono::microseconds(200));  // until the others are far from the cap again
        // Each of the others may have a request under way.
        const CUdeviceptr all = take((mem_info().free - kThreads * 32 * MiB) / MiB * MiB);
        EXPECT(curb_sim_held(0) <= 8 * GiB);
        MUST(cuMemFree_v2(all));
    }
    done = true;
}

// Half of the threads fill the pool. The others allocate and free plain memory, which takes the process near the cap
// and away from it.
SCENARIO_NAMED(threads_with_a_pool_that_keeps_its_memory_never_take_more_than_the_cap) {  // of 4 GiB
    start();
    keep_everything(default_pool());
    std::atomic<int> refused{0};
    in_threads(8, [&](unsigned number) {
        const CUstream stream = make_stream();
        const bool ordered = number % 2 == 0;
        unsigned random = (number + 1) * 2654435761U;
        std::vector<CUdeviceptr> mine;
        const auto give_last = [&] {
            MUST(ordered ? cuMemFreeAsync(mine.back(), stream) : cuMemFree_v2(mine.back()));
            mine.pop_back();
        };
        for (int i = 0; i < 400; ++i) {
            random = random * 1664525U + 1013904223U;
            const std::uint64_t bytes = 1 + (std::uint64_t{random} >> 8) * (ordered ? 2 : 24);  // 32 or 384 MiB at most
            CUdeviceptr block = 0;
            if ((random >> 20) % 3 == 0 && !mine.empty()) {
                give_last();
            } else if (const CUresult result =
                           ordered ? cuMemAllocAsync(&block, bytes, stream) : cuMemAlloc_v2(&block, bytes);
                       result == CUDA_SUCCESS) {
                mine.push_back(block);
            } else {
                EXPECT_EQ(result, CUDA_ERROR_OUT_OF_MEMORY);
                ++refused;
                while (mine.size() > 2) give_last();  // so that the process leaves the cap
            }
        }
        while (!mine.empty()) give_last();
        MUST(cuStreamSynchronize(stream));
    });
    EXPECT(refused > 0);  // else the test never hit the cap
    // An allocation that curb undoes may exceed its grant (decision 0004), by less than curb keeps free for the driver.
    EXPECT(curb_sim_high(0) <= 4 * GiB);
    MUST(cuMemPoolTrimTo(default_pool(), 0));
    EXPECT(within(std::chrono::seconds(2), [] { return shown_held() == kContext; }));
    EXPECT_EQ(curb_sim_held(0), kContext);
}
