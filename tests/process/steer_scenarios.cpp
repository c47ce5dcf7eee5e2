// A program that control_cap_test.cpp and control_status_test.cpp steer from outside: it takes and gives back memory as
// it is told, line by line.

#include <atomic>
#include <functional>
#include <iostream>
#include <map>
#include <string>

#include "memory.hpp"

using namespace scenario;

namespace {

CUcontext context = nullptr;
std::vector<CUdeviceptr> blocks;
constexpr std::uint64_t kBlock = 64 * MiB;

std::string answer_of(CUresult result) {
    return result == CUDA_SUCCESS ? "ok" : result == CUDA_ERROR_OUT_OF_MEMORY ? "refused" : "error";
}

std::string take_one(std::uint64_t bytes) {
    CUdeviceptr block = 0;
    const CUresult result = cuMemAlloc_v2(&block, bytes);
    if (result == CUDA_SUCCESS) blocks.push_back(block);
    return answer_of(result);
}
// As many blocks as are granted.
std::string fill_up() {
    while (take_one(kBlock) == "ok") {
    }
    return std::to_string(curb_sim_held(0));
}
std::string drop_all() {
    for (const CUdeviceptr block : blocks) MUST(cuMemFree_v2(block));
    blocks.clear();
    return "ok";
}

std::string leave_in_pools() {
    for (const std::uint64_t bytes : {64 * MiB, 256 * MiB, 128 * MiB}) {
        CUmemoryPool pool = make_pool(CU_MEM_LOCATION_TYPE_DEVICE, 0);
        CUdeviceptr block = 0;
        keep_everything(pool);
        MUST(cuMemAllocFromPoolAsync(&block, bytes, pool, nullptr));
        MUST(cuMemFreeAsync(block, nullptr));
    }
    return "ok";
}

std::string probe() {
    CUdeviceptr block = 0;
    for (int i = 0; i < 100; ++i) EXPECT_EQ(cuMemAlloc_v2(&block, 1024 * GiB), CUDA_ERROR_OUT_OF_MEMORY);
    return "ok";
}

// A request in a thread of its own, which may be held for room.
std::atomic<int> asked{0};
std::string ask() {
    asked = 1;
    std::thread([] {
        MUST(cuCtxSetCurrent(context));
        CUdeviceptr block = 0;
        asked = cuMemAlloc_v2(&block, kBlock) == CUDA_SUCCESS ? 2 : 3;
    }).detach();
    return "ok";
}
std::string has_been_answered() { return asked == 1 ? "waits" : asked == 2 ? "granted" : "refused"; }

// Work for some seconds, which every synchronisation waits for.
std::string compute() {
    MUST(launch(kernel_of(load_module("curb-sim-module\nkernel slow us=3000000\n"), "slow")));
    return "ok";
}

std::atomic<bool> storming{false};
std::atomic<std::uint64_t> most{0};
std::vector<std::thread> threads;
constexpr unsigned kThreads = 8;
std::atomic<unsigned> turns[kThreads + 1];
std::string begin_storm() {
    storming = true;
    for (unsigned seed = 1; seed <= kThreads; ++seed)
        threads.emplace_back([seed] {
            MUST(cuCtxSetCurrent(context));
            std::vector<CUdeviceptr> mine;
            for (unsigned random = seed * 2654435761U; storming;) {
                random = random * 1664525U + 1013904223U;
                constexpr std::uint64_t kSizes[] = {900 * KiB, 2 * MiB, 33 * MiB, 90 * MiB};
                CUdeviceptr block = 0;
                const bool more = mine.empty() || (random >> 28) < 9;
                if (more && cuMemAlloc_v2(&block, kSizes[random >> 26 & 3]) == CUDA_SUCCESS) {
                    mine.push_back(block);
                } else if (!mine.empty()) {
                    MUST(cuMemFree_v2(mine.back()));
                    mine.pop_back();
                }
                const std::uint64_t held = curb_sim_held(0);
                for (std::uint64_t before = most; held > before && !most.compare_exchange_weak(before, held);) {
                }
                ++turns[seed];
            }
            for (const CUdeviceptr block : mine) MUST(cuMemFree_v2(block));
        });
    return "ok";
}
// What each thread has looked at before is told by then: one that was stopped between its look and its word would tell
// it afterwards.
std::string forget_the_most() {
    for (unsigned seed = 1; seed <= kThreads; ++seed) {
        const unsigned before = turns[seed];
        EXPECT(within(std::chrono::seconds(10), [&] { return turns[seed] != before; }));
    }
    return std::to_string(most.exchange(0));
}
std::string end_storm() {
    storming = false;
    for (std::thread &thread : threads) thread.join();
    threads.clear();
    return std::to_string(most.exchange(0));
}

}  // namespace

SCENARIO_NAMED(is_steered) {
    context = start();
    const std::map<std::string, std::function<std::string()>> commands = {
        {"held", [] { return std::to_string(curb_sim_held(0)); }},
        {"told", [] { return std::to_string(told_total()); }},
        {"take", [] { return take_one(kBlock); }},
        {"fill", fill_up},
        {"drop", drop_all},
        {"pools", leave_in_pools},
        {"probe", probe},
        {"ask", ask},
        {"asked", has_been_answered},
        {"compute", compute},
        {"storm", begin_storm},
        {"most", forget_the_most},
        {"calm", end_storm},
    };
    std::cout << "ready" << std::endl;
    for (std::string line; std::getline(std::cin, line);) std::cout << commands.at(line)() << std::endl;
    if (failures != 0) _exit(1);
}
