// Programs whose traces trace_shim_test.cpp reads. Each prints "held N" to stderr, by the simulated driver's own books.

#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <thread>

#include "kept_blocks.hpp"

using namespace scenario;
using namespace std::chrono_literals;

namespace {

void print_held() { std::fprintf(stderr, "held %llu\n", static_cast<unsigned long long>(curb_sim_held(0))); }

// Allocates and frees a block so often.
void take_and_free(int times, std::uint64_t bytes) {
    for (int i = 0; i < times; ++i) MUST(cuMemFree_v2(take(bytes)));
}

}  // namespace

SCENARIO_NAMED(kept_blocks_are_reused) {
    start();
    const CUdeviceptr block = keep(64 * MiB);
    EXPECT_EQ(take(64 * MiB), block);
    MUST(cuMemFree_v2(block));
    kill(getpid(), SIGUSR1);
    EXPECT(within(std::chrono::seconds(5), [] { return curb_sim_held(0) == kContext; }));
    print_held();
}

SCENARIO_NAMED(frees_at_the_very_end) {
    struct Last {
        CUdeviceptr block = 0;
        ~Last() { cuMemFree_v2(block); }
    };
    start();
    static Last last;  // constructed after the driver, so destroyed before it shuts down
    last.block = take(64 * MiB);
}

// A query of a device's name that begins during the run gets no answer before the driver has shut down.
SCENARIO_NAMED(ends_before_names_are_written) {
    curb_sim_hold_up("cuDeviceGetName", 1, 300);
    start();
}

SCENARIO_NAMED(threads_trace_as_fast_as_they_can) {
#ifdef CURB_SANITIZED
    constexpr int kPairs = 500;  // the test reads each line back
#else
    constexpr int kPairs = 20'000;
#endif
    start();
    in_threads(8, [](unsigned) { take_and_free(kPairs, 2 * MiB); });
    print_held();
}

// A signal stops one thread again and again, until that is while it records an event: it has a place in the ring and
// has not filled it, so the records of another thread are not written. Then the program ends. Prints "rounds N", the
// pairs of the other thread, and "within an event" if it came to that.
SCENARIO_NAMED(ends_while_a_thread_is_within_an_event) {
    static constinit std::atomic<int> stops{0};
    static int goes_on[2];  // a pipe; a byte lets the thread go on
    const CUcontext context = start();
    EXPECT_EQ(pipe(goes_on), 0);
    struct sigaction action {};
    action.sa_handler = [](int) {
        stops.fetch_add(1);
        char byte = 0;
        while (read(goes_on[0], &byte, 1) != 1) {
        }
    };
    sigaction(SIGUSR2, &action, nullptr);
    const std::string trace = "trace-" + std::to_string(getpid()) + ".json";
    const auto written = [&] {
        std::error_code none;
        return std::filesystem::file_size(trace, none);
    };
    std::thread stopped([=] {
        MUST(cuCtxSetCurrent(context));
        for (;;) take_and_free(1, 2 * MiB);
    });
    static constinit std::atomic<int> wanted{0}, done{0};
    std::thread([=] {
        MUST(cuCtxSetCurrent(context));
        for (;; usleep(100))
            if (done < wanted) {
                take_and_free(1, 4 * MiB);
                ++done;
            }
    }).detach();
    bool is_within = false;
    int round = 0;
    for (;;) {
        ++round;
        usleep(100 + round * 7 % 300);
        pthread_kill(stopped.native_handle(), SIGUSR2);
        while (stops != round) usleep(100);
        usleep(30'000);  // the writer takes what there is every 20 ms
        const auto before = written();
        wanted = round;
        // It may also have stopped with a lock that the other thread needs.
        is_within = within(50ms, [&] { return done == round; }) && !within(60ms, [&] { return written() != before; });
        if (is_within || round == 200) break;
        EXPECT_EQ(write(goes_on[1], "", 1), 1);
        while (done != round) usleep(100);
    }
    if (is_within) std::fprintf(stderr, "within an event\n");
    std::fprintf(stderr, "rounds %d\n", round);
    stopped.detach();
}

SCENARIO_NAMED(a_thread_traces_as_fast_as_it_can) {
    start();
    take_and_free(4000, 2 * MiB);
    print_held();
}

extern "C" [[gnu::noinline, gnu::used, gnu::visibility("default")]] void scenario_allocates_here(std::uint64_t bytes,
                                                                                                 CUdeviceptr &block) {
    block = take(bytes);
}

SCENARIO_NAMED(two_functions_allocate) {
    start();
    CUdeviceptr block = 0;
    const volatile int times = 2;  // volatile: an unrolled loop has two calls
    void (*const volatile allocate)(std::uint64_t, CUdeviceptr &) = scenario_allocates_here;  // no inlined copy
    for (int i = 0; i < times; ++i) allocate(64 * MiB, block);
    block = take(48 * MiB);
    allocate(MiB, block);
    print_held();
}

// Two threads free their last blocks at once, again and again; in between, memory of another kind comes and goes.
SCENARIO_NAMED(threads_free_at_the_same_moment) {
    const CUcontext context = start();
    constexpr int kRounds = 3000;
    std::atomic<int> ready{0}, done{0}, looked{0};
    const auto meet = [](std::atomic<int> &at, int round) {
        at.fetch_add(1);
        while (at.load() < 2 * (round + 1)) sched_yield();
    };
    const auto take_part = [&](int round) {
        const CUdeviceptr block = take(2 * MiB);
        meet(ready, round);
        MUST(cuMemFree_v2(block));
        meet(done, round);
    };
    std::thread other([&] {
        MUST(cuCtxSetCurrent(context));
        for (int round = 0; round < kRounds; ++round) {
            take_part(round);
            meet(looked, round);
        }
    });
    for (int round = 0; round < kRounds; ++round) {
        CUdeviceptr managed = 0;
        take_part(round);
        MUST(cuMemAllocManaged(&managed, MiB, CU_MEM_ATTACH_GLOBAL));
        MUST(cuMemFree_v2(managed));
        meet(looked, round);
    }
    other.join();
}
