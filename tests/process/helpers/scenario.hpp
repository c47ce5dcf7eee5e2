// A scenario: a CUDA program that runs under curb on the simulated driver and tests one thing. It exits with 1 if an
// expectation failed. Its figures of memory are those of the simulated driver's own books.
#pragma once

#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "abi/cuda_abi.h"
#include "within.hpp"

namespace scenario {

inline constexpr std::uint64_t KiB = 1ULL << 10, MiB = 1ULL << 20, GiB = 1ULL << 30;
inline constexpr std::uint64_t kContext = 518 * MiB;  // a context of the simulated H100

inline int failures = 0;

#define EXPECT(condition)                                                                \
    do {                                                                                 \
        if (!(condition)) {                                                              \
            std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
            ++scenario::failures;                                                        \
        }                                                                                \
    } while (false)
#define EXPECT_EQ(left, right)                                                                    \
    do {                                                                                          \
        const auto left_ = (left);                                                                \
        const auto right_ = (right);                                                              \
        if (!(left_ == right_)) {                                                                 \
            std::fprintf(stderr, "%s:%d: %s is %lld, not %s = %lld\n", __FILE__, __LINE__, #left, \
                         static_cast<long long>(left_), #right, static_cast<long long>(right_));  \
            ++scenario::failures;                                                                 \
        }                                                                                         \
    } while (false)
#define MUST(call) EXPECT_EQ(call, CUDA_SUCCESS)

// Initialises CUDA with the primary context of device 0 current.
inline CUcontext start() {
    CUcontext context = nullptr;
    MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuCtxSetCurrent(context));
    return context;
}

inline CUcontext make_context() {
    CUcontext context = nullptr;
    MUST(cuCtxCreate_v2(&context, 0, 0));
    return context;
}
inline CUstream make_stream(unsigned flags = CU_STREAM_NON_BLOCKING) {
    CUstream stream = nullptr;
    MUST(cuStreamCreate(&stream, flags));
    return stream;
}

// Threads that run `work(0)`, `work(1)`, …, with the calling thread's context current. Its end waits for them.
class Threads {
  public:
    template <class Work>
    Threads(unsigned count, Work work) {
        CUcontext context = nullptr;
        MUST(cuCtxGetCurrent(&context));
        for (unsigned i = 0; i < count; ++i)
            all_.emplace_back([=] {
                MUST(cuCtxSetCurrent(context));
                work(i);
            });
    }

  private:
    std::vector<std::jthread> all_;
};
// Runs the work in threads, and waits for them.
template <class Work>
void in_threads(unsigned count, Work work) {
    const Threads all(count, std::move(work));
}

// Returns the bytes that curb keeps free for the driver under a cap, after the driver took `code` bytes by itself.
inline std::uint64_t kept_for_driver(std::uint64_t cap, std::uint64_t code) {
    const std::uint64_t first = std::min(cap / 8, 160 * MiB), later = std::min(cap / 64, 32 * MiB);
    return std::max(later, first - std::min(first, code));
}

// Returns the device's bytes as cuMemGetInfo shows them.
struct MemInfo {
    std::size_t free = 0, total = 0;
};
inline MemInfo mem_info() {
    MemInfo out;
    MUST(cuMemGetInfo_v2(&out.free, &out.total));
    return out;
}
inline std::uint64_t shown_total() { return mem_info().total; }
// Returns the bytes that are shown as held: total - free, less what curb keeps free for the driver.
inline std::uint64_t shown_held(std::uint64_t code = 0) {
    const auto [free, total] = mem_info();
    return total - free - (total == 80 * GiB ? 0 : kept_for_driver(total, code));  // 80 GiB: not capped
}

// Returns the file name of the shared object that has the function's code.
inline std::string object_of(void *address) {
    Dl_info info{};
    return address && dladdr(address, &info) && info.dli_fname
               ? std::filesystem::path(info.dli_fname).filename().string()
               : "nowhere";
}

inline std::size_t entries(const char *folder) {
    namespace fs = std::filesystem;
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder), fs::directory_iterator{}));
}

// Waits for the end of a child. Returns its status as waitpid does; -1 if waitpid fails.
inline int status_of(pid_t child) {
    int status = 0;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR) return -1;
    return status;
}

// Runs `body` in a fork child, which then exits with 0. Returns its status as waitpid does.
template <class Body>
int status_of_child(Body body, pid_t (*make)() = fork) {
    const pid_t child = make();
    if (child == 0) {
        body();
        _exit(0);
    }
    return status_of(child);
}

struct Scenario {
    const char *name;
    void (*run)();
};
std::vector<Scenario> &all();
struct Register {
    Register(const char *name, void (*run)()) { all().push_back({name, run}); }
};
#define SCENARIO_NAMED(name)                                       \
    static void name();                                            \
    static const scenario::Register register_##name(#name, &name); \
    static void name()

}  // namespace scenario
