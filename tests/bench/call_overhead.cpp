// What curb adds to a call, over a driver that does nothing: printed, never judged (a shared machine's clock is no
// test).
//
//   call_overhead LIBCURB NOOP_FOLDER      runs itself bare and under curb in turns (A B A B ...), prints the medians
//   call_overhead --measure                one run: a line "NAME NANOSECONDS" for each probe

#include <dlfcn.h>
#include <spawn.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "cuda_abi.h"

namespace {

constexpr int kTurns = 7;
constexpr int kBatches = 31;
constexpr int kCalls = 20'000;

double median(std::vector<double> values) {
    std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
    return values[values.size() / 2];
}

template <class F>
F *find(void *library, const char *name) {
    return reinterpret_cast<F *>(dlsym(library, name));
}

template <class Call>
void probe(const char *name, Call call) {
    using Clock = std::chrono::steady_clock;
    std::vector<double> batches;
    for (int batch = 0; batch < kBatches; ++batch) {
        const auto start = Clock::now();
        for (int i = 0; i < kCalls; ++i) call();
        batches.push_back(std::chrono::duration<double, std::nano>(Clock::now() - start).count() / kCalls);
    }
    std::printf("%s %.1f\n", name, median(batches));
}

int measure() {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) return 1;
    const auto init = find<decltype(cuInit)>(driver, "cuInit");
    const auto set = find<decltype(cuMemPoolSetAttribute)>(driver, "cuMemPoolSetAttribute");
    const auto alloc = find<decltype(cuMemAlloc_v2)>(driver, "cuMemAlloc_v2");
    const auto free_memory = find<decltype(cuMemFree_v2)>(driver, "cuMemFree_v2");
    const auto alloc_async = find<decltype(cuMemAllocAsync)>(driver, "cuMemAllocAsync");
    const auto free_async = find<decltype(cuMemFreeAsync)>(driver, "cuMemFreeAsync");
    const auto launch = find<decltype(cuLaunchKernel)>(driver, "cuLaunchKernel");
    const auto launch_graph = find<decltype(cuGraphLaunch)>(driver, "cuGraphLaunch");
    const auto info = find<decltype(cuMemGetInfo_v2)>(driver, "cuMemGetInfo_v2");
    init(0);
    std::uint64_t value = 0;
    std::size_t free_bytes = 0, total = 0;
    CUdeviceptr pointer = 0;
    probe("passed call", [&] { set(nullptr, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, &value); });
    probe("alloc + free, 2 MiB", [&] {
        alloc(&pointer, 2 << 20);
        free_memory(pointer);
    });
    probe("alloc + free, 4 KiB", [&] {
        alloc(&pointer, 4096);
        free_memory(pointer);
    });
    probe("async alloc + free", [&] {
        alloc_async(&pointer, 4096, nullptr);
        free_async(pointer, nullptr);
    });
    const auto kernel = reinterpret_cast<CUfunction>(0x10);
    probe("kernel launch", [&] { launch(kernel, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr); });
    probe("graph launch", [&] { launch_graph(nullptr, nullptr); });
    probe("mem info", [&] { info(&free_bytes, &total); });
    return 0;
}

using Figures = std::map<std::string, std::vector<double>>;

void take_turn(const char *self, const std::string &environment, Figures &figures) {
    const std::string command = environment + " '" + self + "' --measure";
    FILE *output = popen(command.c_str(), "r");
    std::array<char, 256> line{};
    while (output && fgets(line.data(), line.size(), output)) {
        const std::string text = line.data();
        const std::size_t space = text.rfind(' ');
        if (space != std::string::npos) figures[text.substr(0, space)].push_back(std::atof(text.c_str() + space));
    }
    if (output) pclose(output);
}

// Microseconds from starting /bin/true, with this preload, until it has ended.
double start_time(const std::string &preload) {
    using Clock = std::chrono::steady_clock;
    std::string variable = "LD_PRELOAD=" + preload;
    char name[] = "/bin/true";
    char *arguments[] = {name, nullptr};
    char *environment[] = {variable.data(), nullptr};
    pid_t child = 0;
    int status = 0;
    const auto start = Clock::now();
    if (posix_spawn(&child, name, nullptr, nullptr, arguments, environment) == 0) waitpid(child, &status, 0);
    return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

void compare_start(const char *library) {
    constexpr int kStarts = 401;
    std::vector<double> bare, preloaded;
    for (int i = 0; i < kStarts; ++i) {
        bare.push_back(start_time(""));
        preloaded.push_back(start_time(library));
    }
    const double without = median(bare), with_curb = median(preloaded);
    std::printf("start of /bin/true: %.0f us bare, %.0f us with curb, %.0f us added\n", without, with_curb,
                with_curb - without);
}

}  // namespace

int main(int argc, char **argv) {
    if (argc == 2 && std::strcmp(argv[1], "--measure") == 0) return measure();
    if (argc != 3) {
        std::fprintf(stderr, "usage: %s LIBCURB NOOP_FOLDER\n", argv[0]);
        return 2;
    }
    const std::string driver = std::string("LD_LIBRARY_PATH='") + argv[2] + "' ";
    const std::string self = std::filesystem::read_symlink("/proc/self/exe");
    Figures bare, capped;
    for (int turn = 0; turn < kTurns; ++turn) {
        take_turn(self.c_str(), driver, bare);
        take_turn(self.c_str(), driver + "CURB_CAP=64GiB LD_PRELOAD='" + argv[1] + "' ", capped);
    }
    std::printf("%-24s %10s %10s %10s\n", "ns, median", "bare", "curb", "added");
    for (const auto &[name, values] : bare)
        std::printf("%-24s %10.1f %10.1f %10.1f\n", name.c_str(), median(values), median(capped[name]),
                    median(capped[name]) - median(values));
    compare_start(argv[1]);
    return bare.empty() ? 1 : 0;
}
