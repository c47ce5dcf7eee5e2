// Programs that allocate by stand-ins for PyTorch's and CuPy's allocators, beside libraries that allocate for
// themselves. curb logs to curb.log in the working directory, at level info.

#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <fstream>
#include <functional>

#include "c10_cuda.hpp"
#include "cupy.hpp"
#include "memory.hpp"

extern "C" CUresult cublas_workspace(CUdeviceptr *pointer, std::size_t bytes);

using namespace scenario;
namespace torch = c10::cuda;

namespace {

constexpr auto kLong = std::chrono::seconds(10);

int in_log(const std::string &text) {
    std::ifstream log("curb.log");
    int found = 0;
    for (std::string line; std::getline(log, line);) found += line.find(text) != std::string::npos;
    return found;
}
bool logged(const std::string &text, int times = 1) {
    return within(kLong, [&] { return in_log(text) >= times; });
}

void ask() { kill(getpid(), SIGUSR1); }
// Asks for a release and waits until it has ended.
void release() {
    const int before = in_log("released");
    ask();
    EXPECT(logged("released", before + 1));
}
constexpr const char *kArmed = "pressure 0 B (waits for the program's next large allocation)";

void press() {
    const int before = in_log(kArmed);
    release();
    EXPECT_EQ(in_log(kArmed), before + 1);
}

void cache(std::uint64_t bytes, int blocks) {
    std::vector<CUdeviceptr> all;
    for (int i = 0; i < blocks; ++i) all.push_back(torch::allocate(bytes));
    for (const CUdeviceptr block : all) torch::free_to_cache(block, bytes);
}

}  // namespace

SCENARIO_NAMED(pytorch_is_refused_once_and_gives_back) {
    start();
    cache(64 * MiB, 4);
    EXPECT_EQ(curb_sim_held(0), kContext + 256 * MiB);
    press();
    EXPECT_EQ(curb_sim_held(0), kContext + 256 * MiB);
    const std::uint64_t calls = curb_sim_calls("cuMemAlloc_v2");
    errno = 4711;
    EXPECT(torch::allocate(32 * MiB) != 0);
    EXPECT_EQ(errno, 4711);
    EXPECT_EQ(torch::figures().refused.load(), 1);
    EXPECT_EQ(curb_sim_calls("cuMemAlloc_v2"), calls + 1);  // only the second attempt reached the driver
    EXPECT_EQ(curb_sim_held(0), kContext + 32 * MiB);
    EXPECT(logged("pressure: an allocation on cuda:0 was refused once, and 256 MiB came back"));
    for (int i = 0; i < 100; ++i) EXPECT(torch::allocate(2 * MiB) != 0);
    EXPECT_EQ(torch::figures().refused.load(), 1);
    // curb applies no more pressure for a second.
    release();
    EXPECT_EQ(in_log("pressure 0 B (an allocation was refused just now)"), 1);
    EXPECT(torch::allocate(32 * MiB) != 0);
    EXPECT_EQ(torch::figures().refused.load(), 1);
}

SCENARIO_NAMED(a_segment_that_pytorch_maps_is_refused_once) {
    start();
    cache(64 * MiB, 1);
    press();
    EXPECT_EQ(torch::probe(2 * MiB), CUDA_SUCCESS);  // PyTorch would remember a failure for ever
    EXPECT(torch::expand(20 * MiB));
    EXPECT(torch::expand(20 * MiB));
    EXPECT_EQ(torch::figures().refused.load(), 1);
    EXPECT_EQ(curb_sim_held(0), kContext + 42 * MiB);
}

[[gnu::noinline]] static CUresult python(cupy::Function *function, CUdeviceptr *pointer, std::size_t bytes) {
    const CUresult result = function(pointer, bytes);
    return result == CUDA_SUCCESS ? result : CUDA_ERROR_OUT_OF_MEMORY;  // not a tail call, so that it has a frame
}

SCENARIO_NAMED(a_pool_of_cupy_is_refused_once_and_gives_back) {
    cupy::interpreter = python;
    start();
    CUdeviceptr block = 0;
    MUST(cupy::alloc_from_pool(&block, 64 * MiB));
    cupy::free_to_pool(block);
    press();
    MUST(cupy::alloc_without_pool(&block, 8 * MiB));  // it would not ask again
    EXPECT_EQ(cupy::refusals(), 0);
    MUST(cupy::alloc_from_pool(&block, 32 * MiB));
    EXPECT_EQ(cupy::refusals(), 1);
    EXPECT_EQ(curb_sim_held(0), kContext + 40 * MiB);
    EXPECT(logged("pressure: an allocation on cuda:0 was refused once, and 64 MiB came back"));
    MUST(cupy::alloc_from_pool(&block, 32 * MiB));
    EXPECT_EQ(cupy::refusals(), 1);
}

SCENARIO_NAMED(other_callers_are_served) {
    cupy::interpreter = python;
    start();
    cache(64 * MiB, 1);
    press();
    CUdeviceptr block = 0;
    std::size_t pitch = 0;
    for (const std::uint64_t bytes : {2 * MiB, 64 * MiB}) {
        MUST(cuMemAlloc_v2(&block, bytes));
        MUST(cublas_workspace(&block, bytes));
        MUST(torch::allocate_uncached(&block, bytes));
        MUST(torch::allocate_by_runtime_within(&block, bytes));
        MUST(cupy::alloc_without_pool(&block, bytes));
        MUST(cupy::runtime_malloc(&block, bytes));
        MUST(cuMemAllocManaged(&block, bytes, CU_MEM_ATTACH_GLOBAL));
        MUST(cuMemAllocAsync(&block, bytes, nullptr));
    }
    MUST(cuMemAllocPitch_v2(&block, &pitch, 1 << 20, 64, 4));
    take_physical(20 * MiB);
    EXPECT(torch::allocate(2 * MiB - 1) != 0);
    EXPECT_EQ(torch::figures().refused.load(), 0);
    EXPECT(torch::allocate(2 * MiB) != 0);
    EXPECT_EQ(torch::figures().refused.load(), 1);
}

SCENARIO_NAMED(no_request_is_refused_while_a_graph_is_captured) {
    start();
    const CUstream stream = make_stream();
    CUgraph graph = nullptr;
    press();
    MUST(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    EXPECT(torch::allocate(64 * MiB) != 0);
    release();
    EXPECT_EQ(in_log("pressure 0 B (deferred: graph capture)"), 1);
    EXPECT_EQ(torch::figures().refused.load(), 0);
    MUST(cuStreamEndCapture(stream, &graph));
    EXPECT(torch::allocate(64 * MiB) != 0);
    EXPECT_EQ(torch::figures().refused.load(), 1);
}

static void is_left_alone_once_it_has_made_a_pool(std::atomic<std::uint64_t> &pools) {
    start();
    cache(64 * MiB, 1);
    press();
    ++pools;
    EXPECT(torch::allocate(32 * MiB) != 0);
    EXPECT_EQ(torch::figures().refused.load(), 0);
    release();  // arms for the other caller that is loaded, CuPy's stand-in
    EXPECT(torch::allocate(48 * MiB) != 0);
    EXPECT_EQ(torch::figures().refused.load(), 0);
}

SCENARIO_NAMED(a_process_that_has_made_a_pool_is_left_alone) {
    is_left_alone_once_it_has_made_a_pool(torch::MemPool::uid_);
}
SCENARIO_NAMED(a_process_that_has_made_a_pool_for_graphs_is_left_alone) {
    is_left_alone_once_it_has_made_a_pool(torch::MemPool::uuid_);
}

SCENARIO_NAMED(a_refusal_that_nothing_used_is_forgotten) {
    start();
    press();
    std::this_thread::sleep_for(std::chrono::milliseconds(10'100));  // tests the time limit of 10 s itself
    EXPECT(torch::allocate(32 * MiB) != 0);
    EXPECT_EQ(torch::figures().refused.load(), 0);
}

SCENARIO_NAMED(the_second_attempt_is_served_however_long_it_takes_to_come) {
    start();
    cache(64 * MiB, 1);
    press();
    static std::atomic<bool> answering{false};
    torch::on_refusal = [] {
        answering = true;
        for (int i = 0; i < 3; ++i) {  // longer than curb's pause after an answer
            std::this_thread::sleep_for(std::chrono::milliseconds(500));
            release();
        }
        return true;
    };
    CUcontext context = nullptr;
    MUST(cuCtxGetCurrent(&context));
    std::thread other([context] {
        MUST(cuCtxSetCurrent(context));
        EXPECT(within(kLong, [] { return answering.load(); }));
        while (torch::figures().refused == 1 && in_log("an allocation was refused just now") < 3)
            MUST(cuMemFree_v2(torch::allocate(4 * MiB)));
    });
    EXPECT(torch::allocate(32 * MiB) != 0);
    other.join();
    EXPECT_EQ(torch::figures().refused.load(), 1);
    EXPECT_EQ(torch::figures().failed.load(), 0);
}

SCENARIO_NAMED(a_thread_that_ends_without_a_second_attempt_is_not_waited_for) {
    CUcontext context = start();
    press();
    torch::on_refusal = [] { return false; };
    std::thread gone([context] {
        MUST(cuCtxSetCurrent(context));
        EXPECT(torch::allocate(32 * MiB) == 0);
    });
    gone.join();
    torch::on_refusal = nullptr;
    // join() returns a moment before the kernel removes the thread.
    EXPECT(within(kLong, [] {
        release();
        return in_log(kArmed) == 2;
    }));
    EXPECT(torch::allocate(32 * MiB) != 0);
    EXPECT_EQ(torch::figures().refused.load(), 2);
}

SCENARIO_NAMED(under_a_storm_of_signals_no_thread_ever_fails) {
    start();
    std::atomic<bool> over{false};
    {
        const Threads threads(8, [&](unsigned i) {
            for (std::uint64_t round = 0; !over; ++round) {
                const std::uint64_t bytes = (2 + (round * 7 + i) % 30) * MiB;
                const CUdeviceptr block = torch::allocate(bytes);
                EXPECT(block != 0);
                if (block) torch::free_to_cache(block, bytes);
            }
        });
        const auto began = std::chrono::steady_clock::now();
        const auto before = [&](auto end) { return std::chrono::steady_clock::now() - began < end; };
        while (before(std::chrono::milliseconds(3500)) || (torch::figures().refused < 2 && before(kLong))) {
            ask();
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
        }
        over = true;
    }
    EXPECT(torch::figures().refused >= 2);
    EXPECT(torch::figures().refused <= 4);  // curb pauses for a second after each
    EXPECT_EQ(torch::figures().failed.load(), 0);
}

// Waits until curb has searched for callers: its worker then sleeps for the first time.
static void let_it_look() {
    const auto worker_sleeps = [] {
        for (const auto &task : std::filesystem::directory_iterator("/proc/self/task")) {
            std::string line;
            std::getline(std::ifstream(task.path() / "stat"), line);
            if (line.find("(curb-worker) S") != std::string::npos) return true;
        }
        return false;
    };
    EXPECT(within(std::chrono::seconds(10), worker_sleeps));
}

// start 1 GiB, factor 2
SCENARIO_NAMED(a_cache_comes_back_before_a_growth_step) {
    start();
    let_it_look();
    cache(64 * MiB, 4);
    const CUdeviceptr block = torch::allocate(200 * MiB);  // fits only beside an empty cache
    EXPECT(block != 0);
    const bool grows_first = std::getenv("GROWS_FIRST") != nullptr;
    EXPECT_EQ(torch::figures().refused.load(), grows_first ? 0 : 1);
    EXPECT_EQ(in_log("may now hold"), grows_first ? 1 : 0);
    if (grows_first) return;
    // If the request still does not fit, the allowance grows: curb never refuses a second attempt for pressure.
    EXPECT(torch::allocate(600 * MiB) != 0);
    EXPECT_EQ(torch::figures().refused.load(), 1);
    EXPECT_EQ(torch::figures().failed.load(), 0);
    EXPECT_EQ(in_log("may now hold"), 1);
}

SCENARIO_NAMED(a_growth_step_that_is_needed_is_taken_by_the_second_attempt) {
    start();
    let_it_look();
    EXPECT(torch::allocate(700 * MiB) != 0);
    EXPECT_EQ(torch::figures().refused.load(), 1);
    EXPECT_EQ(torch::figures().failed.load(), 0);
    CUdeviceptr block = 0;
    MUST(cuMemAlloc_v2(&block, 1500 * MiB));  // another caller grows at once
    EXPECT_EQ(in_log("may now hold"), 2);
}
