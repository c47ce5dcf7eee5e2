// Contexts, pools, arrays, mappings and kernels that have ended, and the objects that get their handles next. The
// simulated driver reuses the handle that was freed last.

#include <atomic>
#include <barrier>
#include <fstream>

#include "memory.hpp"

using namespace scenario;

namespace {

void fill_with_blocks() {
    CUdeviceptr block = 0;
    fill([&] { return cuMemAlloc_v2(&block, 32 * MiB); });
}

// Describes green contexts of all multiprocessors.
CUdevResourceDesc all_multiprocessors() {
    CUdevResource multiprocessors{};
    CUdevResourceDesc description = nullptr;
    MUST(cuDeviceGetDevResource(0, &multiprocessors, CU_DEV_RESOURCE_TYPE_SM));
    MUST(cuDevResourceGenerateDesc(&description, &multiprocessors, 1));
    return description;
}

// Runs `act` in `count` threads at once.
template <class Act>
void at_once_in_threads(int count, Act act) {
    std::barrier begin(count);
    std::vector<std::thread> threads;
    for (int i = 0; i < count; ++i)
        threads.emplace_back([&] {
            begin.arrive_and_wait();
            act();
        });
    for (std::thread &thread : threads) thread.join();
}

// Runs `act` in a thread. Its call of `name` has its effect, but returns only at returns(): the driver may already
// reuse what it freed, and curb has not credited it yet.
class OnItsWay {
  public:
    template <class Act>
    OnItsWay(const char *name, Act act) {
        const std::uint64_t before = curb_sim_held(0);
        curb_sim_hold_return(name);
        thread_ = std::thread(act);
        EXPECT(within(std::chrono::seconds(20), [=] { return curb_sim_held(0) < before; }));
    }
    ~OnItsWay() { returns(); }
    OnItsWay(const OnItsWay &) = delete;
    OnItsWay &operator=(const OnItsWay &) = delete;
    void returns() {
        curb_sim_hold_return(nullptr);
        if (thread_.joinable()) thread_.join();
    }

  private:
    std::thread thread_;
};

// Runs `act` in another thread. It may have to wait for `other`, so lets that return after at most 300 ms.
template <class Act>
void beside(OnItsWay &other, Act act) {
    std::atomic<bool> done = false;
    std::thread thread([&] {
        act();
        done = true;
    });
    within(std::chrono::milliseconds(300), [&] { return done.load(); });
    other.returns();
    thread.join();
}

std::uint64_t resident() {
    std::uint64_t all = 0, pages = 0;
    std::ifstream("/proc/self/statm") >> all >> pages;
    return pages * 4 * KiB;
}

}  // namespace

SCENARIO_NAMED(first_contexts_that_are_made_at_once_cost_what_one_does) {
    MUST(cuInit(0));
    at_once_in_threads(8, make_context);
    make_context();
    EXPECT_EQ(curb_sim_held(0), 9 * kContext);
    EXPECT_EQ(shown_held(), 9 * kContext);
}

SCENARIO_NAMED(threads_that_retain_the_first_primary_context_at_once_share_it) {
    MUST(cuInit(0));
    at_once_in_threads(4, start);
    start();
    EXPECT_EQ(curb_sim_held(0), kContext);
    EXPECT_EQ(shown_held(), kContext);
}

SCENARIO_NAMED(threads_that_make_a_first_context_above_the_cap_are_all_refused) {  // cap: 400 MiB
    MUST(cuInit(0));
    const CUdevResourceDesc description = all_multiprocessors();
    std::atomic<int> threads{0}, refused{0};
    at_once_in_threads(8, [&] {
        CUcontext primary = nullptr;
        CUgreenCtx green = nullptr;
        const int number = threads++;
        std::this_thread::sleep_for(std::chrono::milliseconds(20 * number));  // the first context takes 99 ms
        const CUresult result = number % 2 ? cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM)
                                           : cuDevicePrimaryCtxRetain(&primary, 0);
        if (result == CUDA_ERROR_OUT_OF_MEMORY) ++refused;
        EXPECT(!primary && !green);
    });
    EXPECT_EQ(refused.load(), 8);
    EXPECT_EQ(curb_sim_held(0), 0U);
}

SCENARIO_NAMED(a_refused_context_that_the_driver_does_not_destroy_is_held) {  // cap: 400 MiB
    CUcontext context = nullptr;
    CUdeviceptr block = 0;
    MUST(cuInit(0));
    curb_sim_fail_next("cuDevicePrimaryCtxRelease_v2", CUDA_ERROR_UNKNOWN, 1);
    EXPECT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(curb_sim_held(0), kContext);
    start();
    EXPECT_EQ(cuMemAlloc_v2(&block, 2 * MiB), CUDA_ERROR_OUT_OF_MEMORY);
    MUST(cuDevicePrimaryCtxReset_v2(0));
    EXPECT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(curb_sim_held(0), 0U);
}

SCENARIO_NAMED(a_first_context_that_comes_with_a_green_one_costs_what_others_do) {  // cap: 2 GiB
    constexpr std::uint64_t kGreen = 6 * MiB;
    MUST(cuInit(0));
    const CUdevResourceDesc description = all_multiprocessors();
    for (int times = 0; times < 2; ++times) {  // the second time its cost is known
        CUgreenCtx green = nullptr;
        MUST(cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM));
        const CUcontext own = make_context();
        EXPECT_EQ(curb_sim_held(0), 2 * kContext + kGreen);
        EXPECT_EQ(shown_held(kGreen), curb_sim_held(0));
        MUST(cuCtxDestroy_v2(own));
        MUST(cuGreenCtxDestroy(green));
        EXPECT_EQ(curb_sim_held(0), 0U);
    }
}

SCENARIO_NAMED(a_context_that_ends_while_its_device_is_measured_is_not_held) {
    const CUcontext context = start();
    fill_with_blocks();  // near the cap each request measures the device
    const unsigned lists = curb_sim_process_lists();
    curb_sim_set_nvml_hangs(1);
    std::thread measures([=] {
        MUST(cuCtxSetCurrent(context));
        CUdeviceptr block = 0;
        cuMemAlloc_v2(&block, 512 * MiB);
    });
    EXPECT(within(std::chrono::seconds(5), [=] { return curb_sim_process_lists() > lists; }));
    std::thread answers([] {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));  // gives the reset time to end the context
        curb_sim_set_nvml_hangs(0);
    });
    MUST(cuDevicePrimaryCtxReset_v2(0));
    answers.join();
    measures.join();
    start();  // the cap has no room for two contexts
}

SCENARIO_NAMED(a_kernel_is_looked_at_again_when_its_context_has_ended) {
    constexpr const char *kImage = "// curb-sim-module\n// kernel frame local=2048\n";
    start();
    const CUfunction before = kernel_of(load_module(kImage), "frame");
    MUST(launch(before));
    MUST(cuDevicePrimaryCtxReset_v2(0));
    start();
    const CUfunction after = kernel_of(load_module(kImage), "frame");
    EXPECT(after == before);
    fill_with_blocks();
    EXPECT_EQ(launch(after), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT(curb_sim_held(0) <= kCap);
}

SCENARIO_NAMED(a_pool_that_has_the_handle_of_another_kind_of_pool_is_charged) {
    start();
    CUmemoryPool other = make_pool(pool_on(CU_MEM_LOCATION_TYPE_HOST, 0));
    for (int round = 0; round < 2; ++round) {
        CUdeviceptr block = 0;
        MUST(cuMemAllocFromPoolAsync(&block, 64 * MiB, other, nullptr));
        MUST(cuMemFreeAsync(block, nullptr));
        MUST(cuMemPoolDestroy(other));
        const CUmemoryPool pool = make_pool();
        EXPECT(pool == other);
        std::vector<CUdeviceptr> blocks;
        fill([&] { return cuMemAllocFromPoolAsync(&blocks.emplace_back(), 32 * MiB, pool, nullptr); });
        EXPECT_EQ(shown_held(), curb_sim_held(0));
        blocks.pop_back();
        for (const CUdeviceptr one : blocks) MUST(cuMemFreeAsync(one, nullptr));
        MUST(cuCtxSynchronize());
        MUST(cuMemPoolDestroy(pool));
        EXPECT_EQ(shown_held(), kContext);
        other = make_pool(managed_pool_on(CU_MEM_LOCATION_TYPE_HOST));
        EXPECT(other == pool);
    }
}

SCENARIO_NAMED(a_pool_with_the_handle_of_one_whose_record_is_of_graphs_now_is_charged) {
    start();
    const CUmemoryPool pool = make_pool();
    CUdeviceptr block = 0;
    MUST(cuMemAllocFromPoolAsync(&block, 32 * MiB, pool, nullptr));
    MUST(cuMemFree_v2(block));
    MUST(cuMemPoolDestroy(pool));
    const AllocatingGraph graph(32 * MiB);
    MUST(cuGraphLaunch(graph.executable, nullptr));
    const CUmemoryPool again = make_pool();
    EXPECT(again == pool);
    MUST(cuMemAllocFromPoolAsync(&block, 96 * MiB, again, nullptr));
    EXPECT_EQ(shown_held(), curb_sim_held(0));
}

SCENARIO_NAMED(green_contexts_stop_at_the_cap) {
    start();
    const CUdevResourceDesc description = all_multiprocessors();
    CUgreenCtx green = nullptr;
    const int made = fill([&] {
        const CUresult result = cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM);
        if (result == CUDA_SUCCESS) MUST(cuGreenCtxDestroy(green));
        return result;
    });
    EXPECT(made > 40);
    MUST(cuDevicePrimaryCtxReset_v2(0));
    start();
    EXPECT_EQ(shown_held(), curb_sim_held(0));
}

SCENARIO_NAMED(a_managed_pool_that_ends_before_its_blocks_is_charged_until_they_are_freed) {
    constexpr std::uint64_t kBytes = 64 * MiB;
    start();
    const CUmemoryPool pool = make_pool(managed_pool_on(CU_MEM_LOCATION_TYPE_DEVICE));
    CUdeviceptr first = 0, second = 0, third = 0;
    MUST(cuMemAllocFromPoolAsync(&first, kBytes, pool, nullptr));
    MUST(cuMemAllocFromPoolAsync(&second, kBytes, pool, nullptr));
    MUST(cuMemAllocFromPoolAsync(&third, kBytes, pool, nullptr));
    MUST(cuMemFree_v2(third));
    MUST(cuMemPoolDestroy(pool));
    EXPECT_EQ(shown_held(), kContext + 2 * kBytes);
    MUST(cuMemFreeAsync(first, nullptr));
    EXPECT_EQ(shown_held(), kContext + 2 * kBytes);
    curb_sim_fail_next("cuMemFreeAsync", CUDA_ERROR_UNKNOWN, 1);
    EXPECT_EQ(cuMemFreeAsync(second, nullptr), CUDA_ERROR_UNKNOWN);
    EXPECT_EQ(shown_held(), kContext + 2 * kBytes);
    MUST(cuMemFreeAsync(second, nullptr));
    EXPECT_EQ(shown_held(), kContext);
    // The driver keeps it until the next synchronisation.
    EXPECT_EQ(curb_sim_held_for(0, "managed"), 2 * kBytes);
    CUdeviceptr block = 0;
    fill([&] {
        const CUresult result = cuMemAlloc_v2(&block, 32 * MiB);
        EXPECT(curb_sim_held(0) + curb_sim_held_for(0, "managed") <= kCap);
        return result;
    });
}

SCENARIO_NAMED(what_is_freed_in_a_stream_is_no_room_until_the_driver_has_it_back) {
    start();
    std::vector<CUdeviceptr> blocks;
    fill([&] { return cuMemAlloc_v2(&blocks.emplace_back(), 32 * MiB); });
    blocks.pop_back();
    for (const CUdeviceptr one : blocks) MUST(cuMemFreeAsync(one, nullptr));
    EXPECT(fill([&] { return cuMemAlloc_v2(&blocks.front(), 32 * MiB); }) >= static_cast<int>(blocks.size()));
}

SCENARIO_NAMED(a_pool_that_could_not_be_destroyed_is_as_it_was) {
    start();
    std::uint64_t threshold = 12345, reported = 0;
    const CUmemoryPool pool = make_pool();
    CUdeviceptr block = 0;
    MUST(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
    MUST(cuMemAllocFromPoolAsync(&block, 64 * MiB, pool, nullptr));
    curb_sim_fail_next("cuMemPoolDestroy", CUDA_ERROR_UNKNOWN, 1);
    EXPECT_EQ(cuMemPoolDestroy(pool), CUDA_ERROR_UNKNOWN);
    EXPECT_EQ(shown_held(), curb_sim_held(0));
    MUST(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &reported));
    EXPECT_EQ(reported, threshold);
    MUST(cuMemFreeAsync(block, nullptr));
    MUST(cuCtxSynchronize());
    MUST(cuMemPoolDestroy(pool));
    EXPECT_EQ(shown_held(), kContext);
}

SCENARIO_NAMED(records_of_destroyed_pools_are_used_again) {
    start();
    const auto make_and_destroy = [](int times) {
        for (int i = 0; i < times; ++i) MUST(cuMemPoolDestroy(make_pool()));
    };
    make_and_destroy(100);
    const std::uint64_t before = resident(), trims = curb_sim_calls("cuMemPoolTrimTo");
    make_and_destroy(20'000);
    EXPECT_EQ(curb_sim_calls("cuMemPoolTrimTo"), trims);  // curb does not trim an empty pool
#ifndef CURB_SANITIZED                                    // a sanitizer's runtime keeps freed memory
    EXPECT(resident() < before + 1 * MiB);
#else
    static_cast<void>(before);
#endif
}

SCENARIO_NAMED(an_array_beside_the_end_of_another_context_is_charged_once) {
    constexpr std::size_t kWide = 8192;  // 64 MiB of floats at 2048 rows
    const CUcontext primary = start();
    const CUDA_ARRAY3D_DESCRIPTOR large = floats(kWide, 2048, 0, 0);
    const CUcontext own = make_context();
    CUarray before = nullptr, after = nullptr;
    MUST(cuArray3DCreate_v2(&before, &large));
    MUST(cuCtxSetCurrent(primary));
    {
        OnItsWay end("cuCtxDestroy_v2", [=] { MUST(cuCtxDestroy_v2(own)); });
        MUST(cuArray3DCreate_v2(&after, &large));
        EXPECT(after == before);
    }
    EXPECT_EQ(shown_held(), curb_sim_held(0));
    MUST(cuArrayDestroy(after));
    EXPECT_EQ(shown_held(), kContext);
}

SCENARIO_NAMED(a_context_with_the_handle_of_one_that_ends_is_charged) {
    const CUcontext primary = start();
    const CUcontext before = make_context();
    take(64 * MiB);
    MUST(cuCtxSetCurrent(primary));
    {
        OnItsWay end("cuCtxDestroy_v2", [=] { MUST(cuCtxDestroy_v2(before)); });
        beside(end, [=] {
            EXPECT(make_context() == before);
            take(32 * MiB);
        });
    }
    EXPECT_EQ(shown_held(), 2 * kContext + 32 * MiB);
    EXPECT_EQ(shown_held(), curb_sim_held(0));
    MUST(cuCtxDestroy_v2(before));
    EXPECT_EQ(shown_held(), kContext);
}

SCENARIO_NAMED(a_primary_context_that_is_made_again_while_it_ends_is_charged) {
    MUST(cuInit(0));
    make_context();
    CUcontext primary = nullptr;
    MUST(cuDevicePrimaryCtxRetain(&primary, 0));
    MUST(cuCtxPushCurrent_v2(primary));
    take(64 * MiB);
    MUST(cuCtxPopCurrent_v2(&primary));
    {
        OnItsWay end("cuDevicePrimaryCtxRelease_v2", [] { MUST(cuDevicePrimaryCtxRelease_v2(0)); });
        beside(end, [] {
            start();
            take(32 * MiB);
        });
    }
    EXPECT_EQ(shown_held(), 2 * kContext + 32 * MiB);
    EXPECT_EQ(shown_held(), curb_sim_held(0));
}

SCENARIO_NAMED(memory_of_a_context_with_the_handle_of_a_green_one_goes_with_it) {
    constexpr std::uint64_t kGreen = 6 * MiB;
    const CUcontext primary = start();
    const CUdevResourceDesc description = all_multiprocessors();
    CUgreenCtx green = nullptr;
    CUcontext of_green = nullptr;
    MUST(cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    MUST(cuCtxFromGreenCtx(&of_green, green));
    MUST(cuGreenCtxDestroy(green));
    const CUcontext own = make_context();
    EXPECT(own == of_green);
    take(64 * MiB);
    MUST(cuCtxDestroy_v2(own));
    MUST(cuCtxSetCurrent(primary));
    EXPECT_EQ(curb_sim_held(0), kContext + kGreen);
    EXPECT_EQ(shown_held(kGreen), curb_sim_held(0));
}

SCENARIO_NAMED(a_handle_of_host_memory_holds_no_memory_of_the_device) {
    constexpr std::uint64_t kBytes = 64 * MiB;
    start();
    CUmemAllocationProp host = on_device(0);
    CUdeviceptr range = 0;
    CUmemGenericAllocationHandle of_host = 0, again = 0;
    MUST(cuMemAddressReserve(&range, 2 * kBytes, 0, 0, 0));
    CUmemGenericAllocationHandle of_device = take_physical(kBytes);
    host.location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, 0};
    MUST(cuMemCreate(&of_host, 2 * GiB, &host, 0));
    EXPECT_EQ(shown_held(), kContext + kBytes);
    MUST(cuMemRelease(of_host));
    host.location = {CU_MEM_LOCATION_TYPE_HOST, 0};
    MUST(cuMemCreate(&of_host, kBytes, &host, 0));
    MUST(cuMemMap(range, kBytes, 0, of_device, 0));
    MUST(cuMemMap(range + kBytes, kBytes, 0, of_host, 0));
    MUST(cuMemRetainAllocationHandle(&again, reinterpret_cast<void *>(range + kBytes)));
    EXPECT(again == of_host);
    MUST(cuMemUnmap(range, 2 * kBytes));
    MUST(cuMemRelease(of_device));
    EXPECT_EQ(curb_sim_held(0), kContext);
    EXPECT_EQ(shown_held(), kContext);
    // A mapping includes its last byte.
    of_device = take_physical(kBytes);
    MUST(cuMemMap(range, kBytes, 0, of_device, 0));
    MUST(cuMemRetainAllocationHandle(&again, reinterpret_cast<void *>(range + kBytes - 1)));
    MUST(cuMemUnmap(range, kBytes));
    MUST(cuMemRelease(of_device));
    EXPECT_EQ(shown_held(), kContext + kBytes);
    MUST(cuMemRelease(again));
    EXPECT_EQ(shown_held(), kContext);
}
