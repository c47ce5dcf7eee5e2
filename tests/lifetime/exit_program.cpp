// Ends in the way that its first argument names, and prints the events of its end in order. Without arguments it prints
// the ways.
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>

#include "abi/cuda_abi.h"

namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
char *self = nullptr;
CUcontext context = nullptr;

void must(int result, const char *what) {
    if (result == 0) return;
    std::fprintf(stderr, "%s: %d\n", what, result);
    std::_Exit(99);
}

void start() {
    must(cuInit(0), "cuInit");
    must(cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
    must(cuCtxSetCurrent(context), "cuCtxSetCurrent");
}

CUdeviceptr taken() {
    CUdeviceptr block = 0;
    must(cuMemAlloc_v2(&block, 4 * kMiB), "cuMemAlloc");
    return block;
}

// A static object that uses CUDA at the end of the program.
struct Statics {
    const char *name;
    CUdeviceptr block = 0;
    bool starts = false;
    ~Statics() {
        if (starts) start();
        if (starts) block = taken();
        if (block) std::printf("static %s %d\n", name, cuMemFree_v2(block));
    }
};
Statics first{"first"}, second{"second"};

struct PerThread {
    CUdeviceptr block = 0;
    ~PerThread() {
        if (block) std::printf("thread %d\n", cuMemFree_v2(block));
    }
};
thread_local PerThread per_thread;

CUdeviceptr of_handlers[2];
void *volatile kept = nullptr;

// Threads that allocate until the process is gone.
void allocate_for_ever(int count) {
    for (int i = 0; i < count; ++i)
        std::thread([] {
            cuCtxSetCurrent(context);
            for (;;) {
                CUdeviceptr one = 0, other = 0;
                cuMemAlloc_v2(&one, 3 * kMiB);
                cuMemAllocAsync(&other, kMiB, nullptr);
                cuMemFreeAsync(other, nullptr);
                cuMemFree_v2(one);
            }
        }).detach();
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
}

void at_exit_before() { std::printf("handler before %d\n", cuMemFree_v2(of_handlers[0])); }
void at_exit_after() { std::printf("handler after %d\n", cuMemFree_v2(of_handlers[1])); }

void use_statics() {
    first.block = taken();
    second.block = taken();
}

[[noreturn]] void ends_in_handler(int) { std::exit(7); }

void write_policy(const char *file, int cap) {
    const std::string aside = std::string(file) + "." + std::to_string(getpid());
    std::ofstream(aside) << R"({"version":1,"gpu":{"*":{"cap":")" << cap << R"(MiB"}}})";
    std::rename(aside.c_str(), file);
}

// The work of a program before it ends.
enum class Before { nothing, cuda, statics, threads };

struct Way {
    const char *name;
    Before before;
    void (*ends)();
};

int status = 0;  // of main, where that returns

const Way kWays[] = {
    {"return with all alive", Before::statics,
     [] {
         per_thread.block = taken();
         taken();
         status = 3;
     }},
    {"exit", Before::statics, [] { std::exit(4); }},
    {"handlers before and after", Before::nothing,
     [] {
         std::atexit(at_exit_before);
         start();
         std::atexit(at_exit_after);
         for (CUdeviceptr &block : of_handlers) block = taken();
         use_statics();
     }},
    {"quick_exit", Before::statics,
     [] {
         std::at_quick_exit([] { std::printf("quick\n"), std::fflush(stdout); });
         std::quick_exit(5);
     }},
    {"_exit", Before::statics, [] { _exit(6); }},
    {"abort", Before::statics, [] { std::abort(); }},
    {"SIGTERM", Before::threads, [] { raise(SIGTERM); }},
    {"exit from a thread while others allocate", Before::threads, [] { std::thread([] { std::exit(8); }).join(); }},
    {"pthread_exit from main", Before::cuda,
     [] {
         first.block = taken();
         std::thread([] {
             cuCtxSetCurrent(context);
             std::this_thread::sleep_for(std::chrono::milliseconds(20));
             std::printf("last %d\n", cuMemFree_v2(taken()));
         }).detach();
         pthread_exit(nullptr);
     }},
    {"pthread_exit from main before CUDA", Before::nothing,
     [] {
         std::thread([] {
             std::this_thread::sleep_for(std::chrono::milliseconds(20));
             start();
             first.block = taken();
         }).detach();
         pthread_exit(nullptr);
     }},
    {"dlclose of a library that uses CUDA", Before::nothing,
     [] {
         void *library = dlopen(std::getenv("EXIT_LIBRARY"), RTLD_NOW);
         std::printf("closed %d\n", library ? dlclose(library) : -1);
     }},
    {"dlclose of libcuda", Before::nothing,
     [] {
         void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
         const auto init = reinterpret_cast<CUresult (*)(unsigned)>(dlsym(cuda, "cuInit"));
         std::printf("init %d\n", init(0));
         std::printf("closed %d\n", dlclose(cuda));
         std::this_thread::sleep_for(std::chrono::milliseconds(5));
     }},
    {"exit in a signal handler", Before::cuda,
     [] {
         signal(SIGALRM, ends_in_handler);
         const itimerval soon{{0, 0}, {0, 1000 + static_cast<suseconds_t>(getpid() % 7) * 300}};
         setitimer(ITIMER_REAL, &soon, nullptr);
         // The signal mostly comes within malloc, with its lock held: code that runs at exit must not need that lock.
         for (std::size_t random = 1;; random = random * 1664525U + 1013904223U) {
             void *one = std::malloc(20'000 + random % 30'000), *other = std::malloc(2'000 + random % 30'000);
             kept = one;  // or the compiler drops the allocation
             kept = other;
             std::free(one);
             std::free(other);
         }
     }},
    {"exit during a release", Before::threads,
     [] {
         use_statics();
         for (int i = 0; i < 20 && std::getenv("LD_PRELOAD"); ++i) raise(SIGUSR1);
         status = 9;
     }},
    {"exit while a request waits", Before::statics,
     [] {
         CUdeviceptr large = 0;
         must(cuMemAlloc_v2(&large, 1000 * kMiB), "cuMemAlloc");
         static std::atomic<bool> begun{false};
         std::thread([] {
             cuCtxSetCurrent(context);
             CUdeviceptr block = 0;
             begun = true;
             // Beyond what the cap has left, so that it waits for room; without curb there is room.
             cuMemAlloc_v2(&block, 1000 * kMiB);
             pause();
         }).detach();
         while (!begun) std::this_thread::yield();
         std::this_thread::sleep_for(std::chrono::milliseconds(2));
         std::exit(10);
     }},
    {"exit during an edit", Before::statics,
     [] {
         for (int i = 0; i < 5; ++i) write_policy(std::getenv("EXIT_POLICY"), 1000 + i);
         status = 11;
     }},
    {"CUDA for the first time in a static destructor", Before::nothing,
     [] {
         first.starts = true;
         status = 12;
     }},
    {"execve from a thread", Before::threads,
     [] {
         std::thread([] {
             std::string how = "exit";
             char *words[] = {self, how.data(), nullptr};
             execv("/proc/self/exe", words);
         }).join();
     }},
    {"an uncaught exception", Before::statics,
     [] {
         std::set_terminate([] { std::_Exit(13); });
         throw 1;
     }},
    {"_Exit while threads allocate", Before::threads, [] { std::_Exit(14); }},
};

}  // namespace

int main(int /*argc*/, char **argv) {
    self = argv[0];
    for (const Way &way : kWays) {
        if (!argv[1]) std::printf("%s\n", way.name);
        if (!argv[1] || std::strcmp(argv[1], way.name) != 0) continue;
        if (way.before != Before::nothing) start();
        if (way.before == Before::statics) use_statics();
        if (way.before == Before::threads) allocate_for_ever(3);
        way.ends();
    }
    return status;
}
