// Releases that curb runs by itself (idle, a lowered cap, the end of a capture), and NVML that hangs.
// release_shim_test.cpp and shim_test.cpp set the policies.

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <thread>

#include "live.hpp"

using namespace scenario;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

namespace {

constexpr std::uint64_t kPooled = 256 * MiB;

std::uint64_t threshold_of(CUmemoryPool pool) {
    std::uint64_t value = 0;
    MUST(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &value));
    return value;
}

// Leaves memory in the pool, by a free that the host has seen complete.
void leave_in_pool() {
    MUST(cuMemFreeAsync(take_from_keeping_pool(kPooled), nullptr));
    MUST(cuStreamSynchronize(nullptr));
}

bool only_the_context_is_held(milliseconds within_time = milliseconds(10'000)) {
    return within(within_time, [] { return curb_sim_held(0) < kContext + 64 * MiB; });
}

void edit_cap(const char *cap) {
    edit(policy_with_cap(cap));
    EXPECT(
        within(milliseconds(5000), [&] { return shown_total() == (std::string_view(cap) == "1GiB" ? 1 : 4) * GiB; }));
}

void launch_something() {
    static const CUfunction any = kernel_of(load_module("// kernel any\n"), "any");
    MUST(launch(any));
}

}  // namespace

// release.idle: 300ms.
SCENARIO_NAMED(an_idle_process_gives_back_once_in_each_idle_period) {
    start();
    leave_in_pool();
    EXPECT(only_the_context_is_held());
    const std::uint64_t trims = curb_sim_calls("cuMemPoolTrimTo");
    // Still idle: curb does nothing more. The test waits the whole time: a pause of 1500 ms, then two idle periods.
    EXPECT(!within(milliseconds(2200), [&] { return curb_sim_calls("cuMemPoolTrimTo") != trims; }));
    leave_in_pool();
    EXPECT(only_the_context_is_held());
}

// release.idle: 300ms.
SCENARIO_NAMED(a_release_trims_a_pool_of_managed_memory) {
    start();
    const CUmemoryPool pool = make_pool(managed_pool_on(CU_MEM_LOCATION_TYPE_DEVICE));
    CUdeviceptr block = 0;
    keep_everything(pool);
    MUST(cuMemAllocFromPoolAsync(&block, kPooled, pool, nullptr));
    MUST(cuMemFreeAsync(block, nullptr));
    EXPECT_EQ(curb_sim_held_for(0, "managed"), kPooled);
    EXPECT(within(milliseconds(10'000), [] { return curb_sim_held_for(0, "managed") == 0; }));
}

SCENARIO_NAMED(a_process_that_uses_the_gpu_is_not_idle) {
    start();
    leave_in_pool();
    static const CUdeviceptr block = take(MiB);
    void (*const calls[])() = {[] { MUST(cuMemFree_v2(take(MiB))); }, [] { launch_something(); },
                               [] {
                                   char byte = 0;
                                   MUST(cuMemcpyDtoH_v2(&byte, block, 1));
                               },
                               [] {
                                   static const AllocatingGraph graph(MiB);
                                   MUST(cuGraphLaunch(graph.executable, nullptr));
                                   MUST(cuMemFree_v2(graph.block));
                               }};
    for (const auto call : calls) {
        const auto until = Clock::now() + milliseconds(1000);
        while (Clock::now() < until) {
            call();
            usleep(20'000);
        }
        EXPECT(curb_sim_held(0) >= kContext + kPooled);
    }
    MUST(cuMemFree_v2(block));
    EXPECT(only_the_context_is_held());
}

// release.idle: 300ms. While a kernel runs for minutes the program may make no call.
SCENARIO_NAMED(a_process_whose_kernel_runs_on_is_not_idle) {
    start();
    leave_in_pool();
    curb_sim_set_utilization(80);
    EXPECT(!only_the_context_is_held(milliseconds(2500)));
    curb_sim_set_utilization(0);
    EXPECT(only_the_context_is_held());
}

// No release.idle to begin with.
SCENARIO_NAMED(an_edit_makes_a_process_give_back_when_idle) {
    start();
    leave_in_pool();
    EXPECT(!only_the_context_is_held(milliseconds(700)));
    edit(R"({ "version": 1, "release": { "idle": "300ms" } })");
    EXPECT(only_the_context_is_held());
}

// cap: 4GiB, which is lowered.
SCENARIO_NAMED(a_process_above_its_cap_gives_back_at_its_own_synchronisation) {
    start();
    CUmemoryPool pool = default_pool();
    const CUdeviceptr block = take_from_keeping_pool(2 * GiB);
    MUST(cuStreamSynchronize(nullptr));
    edit_cap("1GiB");
    EXPECT_EQ(threshold_of(pool), ~0ULL);  // the program's own value, which curb has lowered
    // The release has run and found everything in use. The program's own free and synchronisation return the memory.
    EXPECT(within(milliseconds(5000), [] { return curb_sim_calls("cuMemPoolSetAttribute") >= 2; }));
    const std::uint64_t trims = curb_sim_calls("cuMemPoolTrimTo");
    MUST(cuMemFreeAsync(block, nullptr));
    MUST(cuStreamSynchronize(nullptr));
    EXPECT(curb_sim_held(0) < 1 * GiB);
    EXPECT_EQ(curb_sim_calls("cuMemPoolTrimTo"), trims);
    // Below the cap curb restores the program's threshold, and the pool keeps memory again.
    EXPECT(within(milliseconds(5000), [] { return curb_sim_calls("cuMemPoolSetAttribute") >= 3; }));
    leave_in_pool();
    EXPECT(curb_sim_held(0) >= kContext + kPooled);
    EXPECT_EQ(threshold_of(pool), ~0ULL);
}

// cap: 4GiB, which is lowered.
SCENARIO_NAMED(a_pool_that_the_driver_will_not_destroy_keeps_its_threshold) {
    start();
    const CUmemoryPool pool = make_pool();
    CUdeviceptr block = 0;
    keep_everything(pool);
    MUST(cuMemAllocFromPoolAsync(&block, 2 * GiB, pool, nullptr));
    const std::uint64_t sets = curb_sim_calls("cuMemPoolSetAttribute");
    edit_cap("1GiB");
    EXPECT(within(milliseconds(5000), [=] { return curb_sim_calls("cuMemPoolSetAttribute") > sets; }));
    curb_sim_fail_next("cuMemPoolDestroy", CUDA_ERROR_UNKNOWN, 1);
    EXPECT_EQ(cuMemPoolDestroy(pool), CUDA_ERROR_UNKNOWN);
    EXPECT_EQ(threshold_of(pool), ~0ULL);
}

// cap: 4GiB, which is lowered.
SCENARIO_NAMED(a_threshold_set_while_above_the_cap_is_the_programs_afterwards) {
    start();
    CUmemoryPool pool = default_pool();
    CUdeviceptr block = take_from_keeping_pool(2 * GiB);
    edit_cap("1GiB");
    EXPECT(within(milliseconds(5000), [] { return curb_sim_calls("cuMemPoolSetAttribute") >= 2; }));
    std::uint64_t own = 64 * MiB;
    MUST(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &own));
    EXPECT_EQ(threshold_of(pool), 64 * MiB);
    MUST(cuMemFreeAsync(block, nullptr));
    MUST(cuStreamSynchronize(nullptr));
    EXPECT(curb_sim_held(0) < kContext + 64 * MiB);  // the driver's threshold is still 0
    edit_cap("4GiB");
    EXPECT(within(milliseconds(5000), [] { return curb_sim_calls("cuMemPoolSetAttribute") >= 3; }));
    EXPECT_EQ(threshold_of(pool), 64 * MiB);
    MUST(cuMemAllocAsync(&block, 32 * MiB, nullptr));
    MUST(cuMemFreeAsync(block, nullptr));
    MUST(cuStreamSynchronize(nullptr));
    EXPECT(curb_sim_held(0) >= kContext + 32 * MiB);  // kept: less than the program's threshold
}

// LOG: curb's log file.
SCENARIO_NAMED(what_a_capture_postpones_is_done_when_it_has_ended) {
    start();
    const CUstream stream = make_stream();
    CUgraph graph = nullptr;
    MUST(cuMemFreeAsync(take_from_keeping_pool(kPooled), nullptr));  // the host has not seen it complete
    MUST(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    const std::uint64_t trims = curb_sim_calls("cuMemPoolTrimTo");
    kill(getpid(), SIGUSR1);
    EXPECT(within(milliseconds(10'000), [] { return log_says("deferred: graph capture"); }));
    EXPECT(curb_sim_calls("cuMemPoolTrimTo") > trims);
    MUST(cuStreamEndCapture(stream, &graph));
    EXPECT(only_the_context_is_held());
    EXPECT(within(milliseconds(10'000), [] { return log_says("on the end of a graph capture"); }));
    // A free that the host has seen complete needs no synchronisation: its memory comes back during a capture.
    leave_in_pool();
    MUST(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    kill(getpid(), SIGUSR1);
    EXPECT(only_the_context_is_held());
    MUST(cuStreamEndCapture(stream, &graph));
}

// LOG: curb's log file.
SCENARIO_NAMED(a_forked_stream_that_is_destroyed_ends_no_capture) {
    start();
    const CUstream stream = make_stream(), other = make_stream();
    CUevent fork = nullptr;
    CUgraph graph = nullptr;
    MUST(cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING));
    MUST(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    MUST(cuEventRecord(fork, stream));
    MUST(cuStreamWaitEvent(other, fork, 0));
    MUST(cuStreamDestroy_v2(other));
    EXPECT(cuStreamEndCapture(stream, &graph) != CUDA_SUCCESS);
    // A release during the next capture must not break it.
    leave_memory_in_the_pool();
    MUST(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    kill(getpid(), SIGUSR1);
    EXPECT(within(milliseconds(10'000), [] { return log_says("deferred: graph capture"); }));
    MUST(cuStreamEndCapture(stream, &graph));
    EXPECT(only_the_context_is_held());
}

// A release waits for a capture in progress, but not for one that has ended or whose stream or context is gone: then
// even memory whose free the host has not seen complete comes back.
SCENARIO_NAMED(a_release_waits_for_no_capture_that_has_ended) {
    CUcontext context = start();
    CUstream stream = nullptr;
    CUgraph graph = nullptr;
    const auto new_graph = [&] {
        MUST(cuGraphCreate(&graph, 0));
        return graph;
    };
    const std::function<CUresult()> beginnings[] = {
        [&] { return cuStreamBeginCapture(stream); },
        [&] { return cuStreamBeginCapture_ptsz(stream); },
        [&] { return cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL); },
        [&] { return cuStreamBeginCapture_v2_ptsz(stream, CU_STREAM_CAPTURE_MODE_GLOBAL); },
        [&] {
            return cuStreamBeginCaptureToGraph(stream, new_graph(), nullptr, nullptr, 0, CU_STREAM_CAPTURE_MODE_GLOBAL);
        },
        [&] {
            return cuStreamBeginCaptureToGraph_ptsz(stream, new_graph(), nullptr, nullptr, 0,
                                                    CU_STREAM_CAPTURE_MODE_GLOBAL);
        },
    };
    struct End {
        std::function<CUresult()> call;
        bool own_context = false, per_thread = false;
    };
    const End ends[] = {
        {[&] { return cuStreamEndCapture(stream, &graph); }},
        {[&] { return cuStreamEndCapture_ptsz(stream, &graph); }},
        {[&] { return cuStreamDestroy_v2(stream); }},
        {[&] { return cuStreamDestroy(stream); }},
        {[&] { return cuDevicePrimaryCtxReset_v2(0); }},
        {[&] { return cuDevicePrimaryCtxRelease_v2(0); }},
        {[&] { return cuDevicePrimaryCtxReset_v2(0); }, false, true},
        {[&] { return cuCtxDestroy_v2(context); }, true},
        {[&] { return cuCtxDestroy_v2(context); }, true, true},
    };
    MUST(cuDevicePrimaryCtxRelease_v2(0));
    for (const auto &begin : beginnings)
        for (const End &end : ends) {
            context = end.own_context ? make_context() : start();
            stream = end.per_thread ? CU_STREAM_PER_THREAD : make_stream();
            MUST(begin());
            EXPECT(begin() != CUDA_SUCCESS);  // a stream captures once at a time
            MUST(end.call());
            start();
            MUST(cuMemFreeAsync(take_from_keeping_pool(kPooled), nullptr));
            kill(getpid(), SIGUSR1);
            EXPECT(only_the_context_is_held());
            MUST(cuDevicePrimaryCtxReset_v2(0));
        }
}

SCENARIO_NAMED(nvml_is_asked_again_after_a_failure) {  // CURB_SIM_NVML=late; LOG: curb's log file
    start();
    const auto is_measured = [] {
        kill(getpid(), SIGUSR1);
        return log_says("the device says " + std::to_string(kContext));
    };
    EXPECT(within(std::chrono::seconds(20), is_measured));
}

namespace {

// Allocates up to near the cap of 1 GiB, where curb measures at each request. Returns the bytes allocated.
std::uint64_t go_near_the_cap() {
    constexpr std::uint64_t kTaken = 320 * MiB;
    CUdeviceptr block = 0;
    start();
    MUST(cuMemAlloc_v2(&block, kTaken));
    return kTaken;
}

milliseconds time_of_an_allocation() {
    CUdeviceptr block = 0;
    const auto begin = Clock::now();
    MUST(cuMemAlloc_v2(&block, 2 * MiB));
    return std::chrono::duration_cast<milliseconds>(Clock::now() - begin);
}

}  // namespace

SCENARIO_NAMED(nvml_that_hangs_delays_no_thread_for_long_and_is_used_again_later) {  // cap 1 GiB; LOG
    constexpr milliseconds kLimit(8000);  // curb waits 2 s; the machine may be busy
    constexpr unsigned kThreads = 8;
    const std::uint64_t taken = go_near_the_cap() + (kThreads + 1) * 2 * MiB;
    curb_sim_set_nvml_hangs(1);
    in_threads(kThreads, [=](unsigned) { EXPECT(time_of_an_allocation() < kLimit); });
    EXPECT(log_says("NVML does not answer"));
    EXPECT(time_of_an_allocation() < milliseconds(1000));  // no thread waits for NVML any more
    CUdeviceptr block = 0;
    EXPECT_EQ(cuMemAlloc_v2(&block, 256 * MiB), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(shown_held(), kContext + taken);
    curb_sim_set_nvml_hangs(0);
    EXPECT(within(std::chrono::seconds(20), [] { return log_says("NVML answers again"); }));
    const auto is_measured = [&] {
        kill(getpid(), SIGUSR1);
        return log_says("the device says " + std::to_string(kContext + taken));
    };
    EXPECT(within(std::chrono::seconds(20), is_measured));
}

SCENARIO_NAMED(a_process_and_its_child_end_while_a_thread_waits_for_nvml) {  // cap 1 GiB
    go_near_the_cap();
    curb_sim_set_nvml_hangs(1);
    CUcontext context = nullptr;
    MUST(cuCtxGetCurrent(&context));
    std::thread([=] {
        cuCtxSetCurrent(context);
        time_of_an_allocation();
    }).detach();
    std::this_thread::sleep_for(milliseconds(300));  // it waits for 2 s
    const auto begin = Clock::now();
    const pid_t child = fork();
    if (child == 0) {
        CUdeviceptr block = 0;
        std::exit(cuMemAlloc_v2(&block, 2 * MiB) == CUDA_ERROR_NOT_INITIALIZED ? 0 : 1);
    }
    EXPECT_EQ(status_of(child), 0);
    EXPECT(Clock::now() - begin < milliseconds(1200));
}

SCENARIO_NAMED(threads_that_wait_for_nvml_share_its_answers) {  // cap 1 GiB
    constexpr unsigned kThreads = 16;
    go_near_the_cap();
    std::atomic<unsigned> ready{0};
    const unsigned before = curb_sim_process_lists();
    curb_sim_set_nvml_hangs(1);
    {
        const Threads threads(kThreads, [&](unsigned) {
            ++ready;
            time_of_an_allocation();
        });
        EXPECT(within(std::chrono::seconds(5), [&] { return ready == kThreads; }));
        std::this_thread::sleep_for(milliseconds(300));
        curb_sim_set_nvml_hangs(0);
    }
    EXPECT(curb_sim_process_lists() - before <= kThreads / 2);
}
