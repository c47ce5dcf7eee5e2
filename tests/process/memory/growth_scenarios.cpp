// Growth: allowances, waiting, and memory kept free for others. policy_shim_test.cpp sets the policy of each scenario.

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <memory>

#include "live.hpp"

using namespace scenario;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

namespace {

milliseconds since(Clock::time_point start) { return std::chrono::duration_cast<milliseconds>(Clock::now() - start); }

// Another process on the same device, without curb, that holds as much memory as hold() says.
class Other {
  public:
    Other() {
        int to[2], from[2];
        EXPECT_EQ(pipe2(to, O_CLOEXEC), 0);
        EXPECT_EQ(pipe2(from, O_CLOEXEC), 0);
        posix_spawn_file_actions_t actions;
        posix_spawn_file_actions_init(&actions);
        posix_spawn_file_actions_adddup2(&actions, to[0], 0);
        posix_spawn_file_actions_adddup2(&actions, from[1], 1);
        std::vector<char *> environment;
        for (char **entry = environ; *entry; ++entry)
            if (std::string_view(*entry).substr(0, 11) != "LD_PRELOAD=") environment.push_back(*entry);
        environment.push_back(nullptr);
        char name[] = "scenarios", scenario[] = "the_other_program";
        char *words[] = {name, scenario, nullptr};
        EXPECT_EQ(posix_spawn(&pid_, "/proc/self/exe", &actions, nullptr, words, environment.data()), 0);
        posix_spawn_file_actions_destroy(&actions);
        close(to[0]);
        close(from[1]);
        to_ = to[1];
        from_ = from[0];
        answer();
    }
    ~Other() {
        close(to_);
        close(from_);
        waitpid(pid_, nullptr, 0);
    }
    Other(const Other &) = delete;
    Other &operator=(const Other &) = delete;

    // Returns once it holds `bytes` besides its context.
    void hold(std::uint64_t bytes) {
        EXPECT_EQ(write(to_, &bytes, sizeof bytes), ssize_t{sizeof bytes});
        answer();
    }

  private:
    void answer() {
        char byte = 0;
        EXPECT_EQ(read(from_, &byte, 1), 1);
    }
    pid_t pid_ = 0;
    int to_ = -1, from_ = -1;
};

// Allocates blocks of 64 MiB, and keeps those that it got.
struct Program {
    std::vector<CUdeviceptr> blocks;
    static constexpr std::uint64_t kBlock = 64 * MiB;

    CUresult more() {
        CUdeviceptr block = 0;
        const CUresult result = cuMemAlloc_v2(&block, kBlock);
        if (result == CUDA_SUCCESS) blocks.push_back(block);
        return result;
    }
    void fill() {
        CUresult result = CUDA_SUCCESS;
        while ((result = more()) == CUDA_SUCCESS) EXPECT(blocks.size() < 10'000);
        EXPECT_EQ(result, CUDA_ERROR_OUT_OF_MEMORY);
    }
    void drop(std::size_t count) {
        for (std::size_t i = 0; i < count; ++i) {
            MUST(cuMemFree_v2(blocks.back()));
            blocks.pop_back();
        }
    }
};

// Runs `body` in a thread in the context. done() is true once it has returned.
class InThread {
  public:
    template <class Body>
    InThread(CUcontext context, Body body)
        : thread_([this, context, body] {
              MUST(cuCtxSetCurrent(context));
              body();
              ended_at_ = Clock::now();
              done_.store(true);
          }) {}
    ~InThread() { thread_.join(); }
    InThread(const InThread &) = delete;
    InThread &operator=(const InThread &) = delete;
    [[nodiscard]] bool done() const { return done_.load(); }
    [[nodiscard]] Clock::time_point ended_at() const { return ended_at_; }

  private:
    Clock::time_point ended_at_{};
    std::atomic<bool> done_{false};
    std::thread thread_;
};

constexpr milliseconds kAtOnce{1000};  // limit for the end of a wait of 20 s whose condition holds, on a loaded machine

}  // namespace

SCENARIO_NAMED(the_other_program) {
    start();
    char ready = '.';
    std::uint64_t bytes = 0;
    CUdeviceptr block = 0;
    do {
        if (block) MUST(cuMemFree_v2(block));
        block = 0;
        if (bytes) MUST(cuMemAlloc_v2(&block, bytes));
        if (write(1, &ready, 1) != 1) return;
    } while (read(0, &bytes, sizeof bytes) == sizeof bytes);
}

// start 1 GiB, step 512 MiB, every 400 ms, cap 8 GiB
SCENARIO_NAMED(the_allowance_grows_by_a_step_at_a_time) {
    const auto began = Clock::now();
    start();
    Program program;
    program.fill();
    EXPECT(curb_sim_held(0) <= 1 * GiB);
    EXPECT(curb_sim_held(0) > 1 * GiB - 160 * MiB - Program::kBlock);
    for (std::uint64_t allowance = 1536 * MiB; allowance <= 2560 * MiB; allowance += 512 * MiB) {
        EXPECT(within(milliseconds(1000), [&] { return program.more() == CUDA_SUCCESS; }));
        EXPECT(since(began) >= milliseconds(400) * (allowance - 1 * GiB) / (512 * MiB) - milliseconds(10));
        program.fill();
        EXPECT(curb_sim_held(0) <= allowance);
        EXPECT(curb_sim_held(0) > allowance - 160 * MiB - Program::kBlock);
    }
}

// start 1 GiB, step 512 MiB, every 200 ms, wait 5 s, cap 3 GiB
SCENARIO_NAMED(a_request_waits_until_a_step_is_due) {
    const auto began = Clock::now();
    start();
    Program program;
    while (curb_sim_held(0) < 2400 * MiB) {
        MUST(program.more());
        EXPECT(curb_sim_held(0) <= 1 * GiB + 512 * MiB * (since(began) + milliseconds(10)) / milliseconds(200));
    }
    EXPECT(since(began) >= milliseconds(590));  // three steps
    EXPECT(since(began) < milliseconds(10'000));
}

// start 1 GiB, factor 2, every 1 h, before_growth
SCENARIO_NAMED(a_release_comes_before_a_step) {
    start();
    leave_memory_in_the_pool();
    take(256 * MiB);
    std::uint64_t reserved = 0;
    MUST(cuMemPoolGetAttribute(default_pool(), CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved));
    EXPECT_EQ(reserved, std::getenv("STEP_FIRST") ? 256 * MiB : 0);
}

// cap 1 GiB, wait 20 s
SCENARIO_NAMED(a_request_waits_for_a_free_in_another_thread) {
    CUcontext context = start();
    for (const bool pooled : {false, true}) {
        CUdeviceptr first = 0, second = 0;
        MUST(pooled ? cuMemAllocAsync(&first, 256 * MiB, nullptr) : cuMemAlloc_v2(&first, 256 * MiB));
        Clock::time_point freed_at{};
        {
            const InThread waiting(context, [&] { MUST(cuMemAlloc_v2(&second, 200 * MiB)); });
            EXPECT(!within(milliseconds(200), [&] { return waiting.done(); }));
            MUST(pooled ? cuMemFreeAsync(first, nullptr) : cuMemFree_v2(first));
            freed_at = Clock::now();
            EXPECT(within(milliseconds(5000), [&] { return waiting.done(); }));
            EXPECT(waiting.ended_at() - freed_at < kAtOnce);
        }
        EXPECT(curb_sim_held(0) <= kCap);
        MUST(cuMemFree_v2(second));
    }
}

// cap 1 GiB, wait 20 s
SCENARIO_NAMED(a_request_that_waits_follows_an_edit) {
    CUcontext context = start();
    Program program;
    while (shown_held() + Program::kBlock < 1 * GiB - 128 * MiB) MUST(program.more());
    {
        const InThread waiting(context, [] { take(512 * MiB); });
        EXPECT(!within(milliseconds(200), [&] { return waiting.done(); }));
        edit(
            R"({ "version": 1, "log": { "level": "info" }, "gpu": { "*": { "cap": "2GiB", "growth": { "wait": "20s" } } } })");
        EXPECT(within(milliseconds(1000), [&] { return waiting.done(); }));
    }
    CUdeviceptr block = 0;
    CUresult result = CUDA_SUCCESS;
    {
        const InThread waiting(context, [&] { result = cuMemAlloc_v2(&block, 1 * GiB); });
        EXPECT(!within(milliseconds(200), [&] { return waiting.done(); }));
        edit(R"({ "version": 1, "log": { "level": "info" }, "gpu": { "*": { "cap": "2GiB" } } })");  // no longer waits
        EXPECT(within(milliseconds(1000), [&] { return waiting.done(); }));
    }
    EXPECT_EQ(result, CUDA_ERROR_OUT_OF_MEMORY);
}

// cap 1 GiB, wait 1.5 s
SCENARIO_NAMED(a_request_waits_no_longer_than_the_policy_says) {
    start();
    Program program;
    while (shown_held() + Program::kBlock < 1 * GiB - 128 * MiB) MUST(program.more());
    errno = 42;
    auto began = Clock::now();
    EXPECT_EQ(program.more(), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(errno, 42);
    EXPECT(since(began) >= milliseconds(1490));
    EXPECT(since(began) < milliseconds(10'000));
    EXPECT_EQ(program.more(), CUDA_ERROR_OUT_OF_MEMORY);
    // A request that can never fit is refused at once.
    began = Clock::now();
    CUdeviceptr block = 0;
    EXPECT_EQ(cuMemAlloc_v2(&block, 1 * GiB), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT(since(began) < kAtOnce);
}

// start 1 GiB, step 512 MiB, every 100 ms, wait 1 s, cap 2 GiB
SCENARIO_NAMED(a_request_stops_waiting) {
    start();
    Program program;
    program.fill();
    EXPECT(curb_sim_held(0) > 1536 * MiB);
}

// 8 GiB device, keep_free 4 GiB
SCENARIO_NAMED(keep_free_stays_free) {
    Other other;
    other.hold(2 * GiB);
    start();
    const auto free_of_device = [](std::uint64_t others) { return 8 * GiB - others - kContext - curb_sim_held(0); };
    Program program;
    program.fill();
    EXPECT(free_of_device(2 * GiB) >= 4 * GiB);
    EXPECT(free_of_device(2 * GiB) < 4 * GiB + Program::kBlock);
    const auto [free_bytes, total] = mem_info();
    EXPECT_EQ(total, 8 * GiB);
    EXPECT(free_bytes < Program::kBlock);  // what the program may still get
    // The other takes more: the program keeps its memory, and gets no more.
    other.hold(2560 * MiB);
    const std::uint64_t held = curb_sim_held(0);
    EXPECT_EQ(program.more(), CUDA_ERROR_OUT_OF_MEMORY);
    program.drop(1);
    EXPECT_EQ(program.more(), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(curb_sim_held(0), held - Program::kBlock);
    // The other frees memory: there is room again.
    other.hold(1 * GiB);
    MUST(program.more());
    program.fill();
    EXPECT(free_of_device(1 * GiB) >= 4 * GiB);
    EXPECT(free_of_device(1 * GiB) < 4 * GiB + Program::kBlock);
}

// 8 GiB, which GPU and host share, keep_free 4 GiB
SCENARIO_NAMED(the_program_sees_what_the_host_has_available) {
    start();
    const auto [free_bytes, total] = mem_info();
    EXPECT_EQ(total, 8 * GiB);
    EXPECT_EQ(free_bytes, 4 * GiB - kContext);  // the driver's figure leaves out the page cache
}

// 8 GiB device, wait 20 s, with keep_free 4 GiB or without
SCENARIO_NAMED(sizes_that_no_device_has_are_not_waited_for) {
    start();
    const auto began = Clock::now();
    CUdeviceptr block = 0;
    for (const std::uint64_t bytes : {9 * GiB, std::uint64_t{1} << 50, std::uint64_t{1} << 62}) {
        EXPECT_EQ(cuMemAlloc_v2(&block, bytes), CUDA_ERROR_OUT_OF_MEMORY);
        EXPECT_EQ(cuMemAllocAsync(&block, bytes, nullptr), CUDA_ERROR_OUT_OF_MEMORY);
    }
    EXPECT(since(began) < milliseconds(10'000));
}

// 8 GiB device, keep_free 6 GiB and wait 20 s
SCENARIO_NAMED(a_context_and_a_request_wait_for_other_processes) {
    Other other;
    other.hold(2 * GiB);
    MUST(cuInit(0));
    std::atomic<bool> started{false};
    CUcontext context = nullptr;
    std::thread starting([&] {
        MUST(cuDevicePrimaryCtxRetain(&context, 0));
        started.store(true);
    });
    EXPECT(!within(milliseconds(200), [&] { return started.load(); }));
    other.hold(512 * MiB);
    EXPECT(within(kAtOnce, [&] { return started.load(); }));
    starting.join();
    const InThread waiting(context, [] { take(512 * MiB); });
    EXPECT(!within(milliseconds(200), [&] { return waiting.done(); }));
    other.hold(0);
    EXPECT(within(kAtOnce, [&] { return waiting.done(); }));
}

// 8 GiB device, wait 20 s, no cap: another process fills the device
SCENARIO_NAMED(a_device_that_others_fill_refuses) {  // 8 GiB
    Other other;
    other.hold(6 * GiB);
    start();
    CUdeviceptr block = 0;
    for (int i = 0; i < 3; ++i) EXPECT_EQ(cuMemAlloc_v2(&block, 2 * GiB), CUDA_ERROR_OUT_OF_MEMORY);
}

// 80 GiB device, cap 7 GiB; wait 20 s, turns, or neither
SCENARIO_NAMED(a_pool_with_a_limit_refuses_beyond_it) {
    start();
    CUmemPoolProps limited = pool_on(CU_MEM_LOCATION_TYPE_DEVICE, 0);
    limited.maxSize = 1 * GiB;
    const CUmemoryPool pool = make_pool(limited);
    CUdeviceptr block = 0;
    for (int i = 0; i < 4; ++i) MUST(cuMemAllocFromPoolAsync(&block, 256 * MiB, pool, nullptr));
    const auto began = Clock::now();
    EXPECT_EQ(cuMemAllocFromPoolAsync(&block, 256 * MiB, pool, nullptr), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT(since(began) < milliseconds(10'000));
}

SCENARIO_NAMED(a_full_device_is_waited_for) {
    Other other;
    const std::string kind = std::getenv("KIND");
    CUcontext context = nullptr;
    if (kind == "context") {
        other.hold(7 * GiB + 256 * MiB);
        MUST(cuInit(0));
    } else {
        context = start();
        other.hold(6 * GiB);
    }
    CUfunction kernel = nullptr;
    if (kind == "launch") kernel = kernel_of(load_module("curb-sim-module\nkernel large local=6144\n"), "large");
    const InThread waiting(context, [&] {
        if (kind == "context") start();
        if (kind == "module") load_module("curb-sim-module global=2GiB\n");
        if (kind == "launch") MUST(launch(kernel));
        CUdeviceptr block = 0;
        if (kind == "plain") MUST(cuMemAlloc_v2(&block, 2 * GiB));
        if (kind == "async") MUST(cuMemAllocAsync(&block, 2 * GiB, nullptr));
        if (kind == "mapped") take_physical(2 * GiB);
        if (kind == "graph") {
            const AllocatingGraph graph(2 * GiB);
            MUST(cuGraphLaunch(graph.executable, nullptr));
        }
    });
    EXPECT(!within(milliseconds(200), [&] { return waiting.done(); }));
    other.hold(1 * GiB);
    EXPECT(within(milliseconds(1000), [&] { return waiting.done(); }));
}

// start 1 GiB, step 512 MiB, every 300 ms, wait 20 s, cap 8 GiB; LOG: curb's log file
SCENARIO_NAMED(after_a_release_the_allowance_falls_back) {
    start();
    Program program;
    while (curb_sim_held(0) < 2200 * MiB) MUST(program.more());
    program.drop(program.blocks.size() - 8);  // holds 518 + 512 MiB: a step above the start
    kill(getpid(), SIGUSR1);
    EXPECT(within(milliseconds(10'000), [] { return log_says("allowance: cuda:0 falls back to 1.5 GiB"); }));
    const auto released = Clock::now();
    while (curb_sim_held(0) < 2200 * MiB) {
        MUST(program.more());
        const auto steps = (since(released) + milliseconds(200)) / milliseconds(300);  // the log is read a little late
        EXPECT(curb_sim_held(0) <= 1536 * MiB + 512 * MiB * static_cast<std::uint64_t>(steps));
    }
}

// cap 4 GiB, start 1 GiB, step 256 MiB, every 10 ms, wait 5 s, keep_free 5 GiB of 8 GiB
SCENARIO_NAMED(threads_that_wait_for_each_other_are_all_served) {
    CUcontext context = start();
    std::vector<std::unique_ptr<InThread>> threads;
    for (unsigned seed = 1; seed <= 8; ++seed)
        threads.push_back(std::make_unique<InThread>(context, [seed] {
            unsigned random = seed * 2654435761U;
            for (int i = 0; i < 150; ++i) {
                random = random * 1664525U + 1013904223U;
                CUdeviceptr block = 0;
                const std::uint64_t bytes = (1 + (std::uint64_t{random} >> 8) % 600) * MiB;
                if (random & 1) {
                    MUST(cuMemAlloc_v2(&block, bytes));
                    EXPECT(curb_sim_held(0) <= 3 * GiB);
                    MUST(cuMemFree_v2(block));
                } else {
                    MUST(cuMemAllocAsync(&block, bytes, nullptr));
                    EXPECT(curb_sim_held(0) <= 3 * GiB);
                    MUST(cuMemFreeAsync(block, nullptr));
                }
            }
        }));
    threads.clear();
}

SCENARIO_NAMED(the_program_sees_a_device_of_this_size) {
    start();
    EXPECT_EQ(shown_total(), static_cast<std::uint64_t>(std::atoi(std::getenv("SHOWN_MIB"))) * MiB);
}

// cap 800 MiB under a ceiling of 1 GiB
SCENARIO_NAMED(edits_stay_below_the_ceiling) {
    const auto administer = [](const std::string &text) { write_in_place("/etc/curb/policy.json", text); };
    const auto comes_to = [](std::uint64_t total) {
        return within(milliseconds(1000), [total] { return shown_total() == total; });
    };
    start();
    EXPECT(comes_to(800 * MiB));
    edit(policy_with_cap("4GiB"));
    EXPECT(comes_to(1 * GiB));
    administer(policy_with_cap("2GiB"));
    EXPECT(comes_to(2 * GiB));
    administer("{");
    EXPECT(!within(milliseconds(700), [] { return shown_total() != 2 * GiB; }));
    administer(policy_with_cap("80GiB"));
    EXPECT(comes_to(4 * GiB));
}
