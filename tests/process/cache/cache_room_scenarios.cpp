// When the cache frees kept blocks: requests that need the memory, a full device, a release, an edit.

#include "kept_blocks.hpp"

using namespace scenario;

namespace {

// The cap of 1 GiB, less the context and what curb keeps free for the driver.
constexpr std::uint64_t kRoom = kCap - kContext - 128 * MiB;
constexpr std::uint64_t kPiece = 32 * MiB;
constexpr std::uint64_t kAsked = 320 * MiB;
static_assert(kAsked <= kRoom && kAsked > kRoom - kMostKept);

void fill_the_cache() {
    // A release may still run after its effect shows on the device, and would free these blocks too.
    EXPECT(within(std::chrono::seconds(2), [] {
        std::vector<CUdeviceptr> blocks;
        for (std::uint64_t bytes = 0; bytes < kMostKept; bytes += kPiece) blocks.push_back(take(kPiece));
        for (const CUdeviceptr block : blocks) MUST(cuMemFree_v2(block));
        return curb_sim_held(0) == kContext + kMostKept;
    }));
}

bool nothing_kept() { return curb_sim_held(0) == kContext; }

}  // namespace

SCENARIO_NAMED(kept_blocks_go_before_a_request_is_refused) {
    start();
    fill_the_cache();
    // curb frees only as many as it needs, the oldest first.
    const CUdeviceptr large = take(kRoom - kMostKept + kPiece + 1 * MiB);
    EXPECT_EQ(curb_sim_held(0), kContext + kRoom - kPiece + 2 * MiB);
    MUST(cuMemFree_v2(large));
    nothing_is_left_but(kContext);

    const auto kind = [](auto allocate, auto free_again) {
        fill_the_cache();
        EXPECT_EQ(allocate(), CUDA_SUCCESS);
        EXPECT(curb_sim_held(0) > kContext + kAsked - 2 * MiB && curb_sim_held(0) <= kCap);
        EXPECT_EQ(free_again(), CUDA_SUCCESS);
        nothing_is_left_but(kContext);
    };
    CUdeviceptr block = 0;
    CUmemGenericAllocationHandle handle = 0;
    CUarray array = nullptr;
    std::size_t stack = 0;
    std::size_t pitch = 0;
    CUgraphExec graph = nullptr;
    const CUmemAllocationProp properties = on_device(0);
    const CUDA_ARRAY3D_DESCRIPTOR floats_320 = floats(8192, kAsked / 8192 / 4, 0, 0);
    MUST(cuCtxGetLimit(&stack, CU_LIMIT_STACK_SIZE));
    kind([&] { return cuMemAllocPitch_v2(&block, &pitch, 8192, kAsked / 8192, 4); },
         [&] { return cuMemFree_v2(block); });
    kind([&] { return cuMemAllocAsync(&block, kAsked, nullptr); },
         [&] {
             MUST(cuMemFreeAsync(block, nullptr));
             return cuStreamSynchronize(nullptr);
         });
    kind([&] { return cuMemCreate(&handle, kAsked, &properties, 0); }, [&] { return cuMemRelease(handle); });
    kind([&] { return cuArray3DCreate_v2(&array, &floats_320); }, [&] { return cuArrayDestroy(array); });
    kind([&] { return cuCtxSetLimit(CU_LIMIT_STACK_SIZE, stack + 1280); },
         [&] { return cuCtxSetLimit(CU_LIMIT_STACK_SIZE, stack); });
    AllocatingGraph allocating(kAsked);
    graph = allocating.executable;
    kind([&] { return cuGraphLaunch(graph, nullptr); },
         [&] {
             MUST(cuMemFreeAsync(allocating.block, nullptr));
             MUST(cuStreamSynchronize(nullptr));
             return cuDeviceGraphMemTrim(0);
         });
    // NVML counts managed memory for no process, but curb charges it.
    fill_the_cache();
    MUST(cuMemAllocManaged(&block, kAsked, CU_MEM_ATTACH_GLOBAL));
    EXPECT(within(std::chrono::seconds(1), [] { return shown_held() <= kContext + kAsked; }));
    MUST(cuMemFree_v2(block));
    nothing_is_left_but(kContext);
}

SCENARIO_NAMED(a_request_that_nothing_would_help_leaves_the_cache_alone) {
    start();
    fill_the_cache();
    CUdeviceptr block = 0;
    EXPECT_EQ(cuMemAlloc_v2(&block, 2 * GiB), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(curb_sim_held(0), kContext + kMostKept);
    // cuMemGetInfo shows the kept blocks as free, and a request of that size succeeds.
    const auto [free_bytes, total] = mem_info();
    EXPECT_EQ(free_bytes, kRoom);
    EXPECT_EQ(total, kCap);
    MUST(cuMemAlloc_v2(&block, free_bytes));
}

// The allowance starts at 1 GiB. cache_shim_test checks that the log has no growth step.
SCENARIO_NAMED(kept_blocks_go_before_the_allowance_grows) {
    start();
    fill_the_cache();
    take(kAsked);
    EXPECT_EQ(curb_sim_held(0) % MiB, 0U);
    EXPECT(curb_sim_held(0) <= 1 * GiB);
}

// Without a cap, on a device of 1,200 MiB.
SCENARIO_NAMED(kept_blocks_go_when_the_device_is_full) {
    const CUcontext first = start();
    const auto full = [] {
        std::vector<CUdeviceptr> blocks;
        for (std::uint64_t bytes = 0; bytes < kMostKept; bytes += kPiece) blocks.push_back(take(kPiece));
        for (const CUdeviceptr block : blocks) MUST(cuMemFree_v2(block));
        EXPECT_EQ(curb_sim_held(0), kContext + kMostKept);
        EXPECT_EQ(mem_info().free, 1200 * MiB - kContext);
    };
    full();
    MUST(cuMemFree_v2(take(600 * MiB)));
    EXPECT(nothing_kept());
    full();
    MUST(cuCtxDestroy_v2(make_context()));
    MUST(cuCtxSetCurrent(first));
    EXPECT(nothing_kept());
    full();
    CUmodule module = load_module("curb-sim-module global=500MiB\n");
    MUST(cuModuleUnload(module));
    EXPECT(nothing_kept());
    // 2 KiB more local memory for each thread: 528 MiB.
    module = load_module("curb-sim-module\nkernel deep local=3072\n");
    const CUfunction deep = kernel_of(module, "deep");
    full();
    MUST(launch(deep));
    EXPECT(curb_sim_held(0) > kContext + 500 * MiB);
}

SCENARIO_NAMED(a_release_gives_the_cache_back) {
    start();
    fill_the_cache();
    kill(getpid(), SIGUSR1);
    EXPECT(soon(nothing_kept));
    EXPECT(soon([] { return shown_held() == kContext; }));
}

// The policy's only step is "pools". The log line of a release ends with the books.
SCENARIO_NAMED(a_release_without_that_step_leaves_the_cache) {
    start();
    const CUdeviceptr block = keep(64 * MiB);
    kill(getpid(), SIGUSR1);
    EXPECT(soon([] { return log_says(", cached 67108864; the device says"); }));
    EXPECT_EQ(take(64 * MiB), block);
}

namespace {

void edit_cache(const std::string &cache, const std::string &cap = "1GiB") {
    edit(R"({ "version": 1, "gpu": { "*": { "cap": ")" + cap + R"(" )" +
         (cache.empty() ? "" : R"(, "cache": { "max": ")" + cache + "\" }") + " } } }");
}

}  // namespace

SCENARIO_NAMED(an_edit_of_the_cache_is_in_force_at_once) {
    start();
    fill_the_cache();
    edit_cache("64MiB");
    EXPECT(soon([] { return curb_sim_held(0) == kContext + 64 * MiB; }));
    edit_cache("");
    EXPECT(soon(nothing_kept));
    EXPECT(driver_frees(take(2 * MiB)));
    const CUdeviceptr before = take(2 * MiB);
    edit_cache("50%");  // of the device
    EXPECT(within(std::chrono::seconds(5), [] { return !driver_frees(take(1 * MiB)); }));
    EXPECT(!driver_frees(before));
    EXPECT_EQ(take(2 * MiB), before);
}

// Reusing a kept block takes nothing from the device, but above the cap every freed block must go back to the driver.
SCENARIO_NAMED(nothing_is_kept_or_handed_out_beyond_the_cap) {
    start();
    const CUdeviceptr stays = take(100 * MiB), block = take(4 * MiB), kept = keep(2 * MiB);
    edit_cache("256MiB", "600MiB");
    EXPECT(soon([] { return shown_total() == 600 * MiB; }));
    EXPECT(soon([] { return curb_sim_held(0) == kContext + 104 * MiB; }));
    CUdeviceptr none = 0;
    EXPECT_EQ(cuMemAlloc_v2(&none, 2 * MiB), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT(driver_frees(block));
    EXPECT(driver_frees(stays));
    EXPECT(kept != 0);
    EXPECT(!driver_frees(take(2 * MiB)));
}

// The time is linear in the number of blocks, not quadratic: that would be some thousand times as much.
SCENARIO_NAMED(a_context_ends_beside_anothers_kept_blocks) {
    constexpr int kBlocks = 20'000;
    const auto keep_many = [] {
        std::vector<CUdeviceptr> blocks;
        for (int i = 0; i < kBlocks; ++i) blocks.push_back(take(4 * KiB));
        for (const CUdeviceptr block : blocks) MUST(cuMemFree_v2(block));
    };
    const auto worked_s = [] {  // by this thread: other processes do not change it
        timespec now{};
        EXPECT_EQ(::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now), 0);
        return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9;
    };
    const auto end_of_a_context = [&](bool beside) {
        const CUcontext primary = start(), own = make_context();
        keep_many();
        MUST(cuCtxSetCurrent(primary));
        if (beside) keep_many();
        const double began = worked_s();
        MUST(cuCtxDestroy_v2(own));
        const double took = worked_s() - began;
        MUST(cuDevicePrimaryCtxReset_v2(0));
        return took;
    };
    const double alone = end_of_a_context(false);
    EXPECT(end_of_a_context(true) < 50 * alone);
}

SCENARIO_NAMED(a_block_serves_its_own_context_alone) {
    const CUcontext first = start(), second = make_context();
    const CUdeviceptr of_second = keep(2 * MiB);
    MUST(cuCtxSetCurrent(first));
    const CUdeviceptr of_first = take(2 * MiB);
    EXPECT(of_first != of_second);
    // Freed with the other one current, as the driver allows.
    MUST(cuCtxSetCurrent(second));
    EXPECT(!driver_frees(of_first));
    EXPECT_EQ(take(2 * MiB), of_second);
    EXPECT(take(2 * MiB) != of_first);
    MUST(cuCtxSetCurrent(first));
    EXPECT_EQ(take(2 * MiB), of_first);
}

// The policy keeps up to 64 MiB of the first device and nothing of the second.
SCENARIO_NAMED(each_device_has_its_own_cache) {
    const CUcontext first = start();
    CUcontext second = nullptr;
    MUST(cuDevicePrimaryCtxRetain(&second, 1));
    const CUdeviceptr of_first = keep(32 * MiB);
    MUST(cuCtxSetCurrent(second));
    EXPECT(take(32 * MiB) != of_first);
    EXPECT(driver_frees(take(32 * MiB)));
    MUST(cuCtxSetCurrent(first));
    EXPECT_EQ(take(32 * MiB), of_first);
    // With peer access the second context's work may reach memory of the first, so curb keeps none of it. It would if
    // the first context had access to the second.
    MUST(cuCtxSetCurrent(second));
    MUST(cuCtxEnablePeerAccess(first, 0));
    MUST(cuCtxSetCurrent(first));
    EXPECT(driver_frees(of_first));
    EXPECT_EQ(curb_sim_held(0), kContext);
}
