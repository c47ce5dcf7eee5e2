// What the trace adds to a program's thread, over a driver that does nothing: printed, never judged (a shared machine's
// clock is no test). Batches end before the ring is full and the writer is given the time to empty it between them, so
// that what is measured are events that are written: of how many were dropped the last line tells.
//
//   trace_cost LIBCURB NOOP_FOLDER     runs itself bare, under curb and with a trace in turns, prints the medians
//   trace_cost --measure               one run: a line "NAME NANOSECONDS" for each probe

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "cuda_abi.h"

namespace {

constexpr int kBatches = 15, kCalls = 2'000;
constexpr int kEvents = 2;  // of an allocation and its free

double median(std::vector<double> values) {
    std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
    return values[values.size() / 2];
}

template <class F>
F *find(void *library, const char *name) {
    return reinterpret_cast<F *>(dlsym(library, name));
}

// The fastest of the batches' middle: what a thread pays that is not interrupted.
template <class Call>
void probe(const char *name, Call call) {
    using Clock = std::chrono::steady_clock;
    std::vector<double> batches;
    for (int batch = 0; batch < kBatches; ++batch) {
        const auto start = Clock::now();
        for (int i = 0; i < kCalls; ++i) call();
        batches.push_back(std::chrono::duration<double, std::nano>(Clock::now() - start).count() / kCalls);
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    std::printf("%s %.1f\n", name, median(batches));
}

int measure() {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) return 1;
    const auto alloc = find<decltype(cuMemAlloc_v2)>(driver, "cuMemAlloc_v2");
    const auto free_memory = find<decltype(cuMemFree_v2)>(driver, "cuMemFree_v2");
    const auto alloc_async = find<decltype(cuMemAllocAsync)>(driver, "cuMemAllocAsync");
    const auto free_async = find<decltype(cuMemFreeAsync)>(driver, "cuMemFreeAsync");
    find<decltype(cuInit)>(driver, "cuInit")(0);
    CUdeviceptr pointer = 0;
    for (int i = 0; i < 20'000; ++i) {  // until every page of the ring is there
        alloc(&pointer, 2 << 20);
        free_memory(pointer);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
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
    return 0;
}

using Figures = std::map<std::string, std::vector<double>>;

void take_turn(const std::string &command, Figures &figures) {
    FILE *output = popen(command.c_str(), "r");
    std::array<char, 256> line{};
    while (output && fgets(line.data(), line.size(), output)) {
        const std::string text = line.data();
        const std::size_t space = text.rfind(' ');
        if (space != std::string::npos) figures[text.substr(0, space)].push_back(std::atof(text.c_str() + space));
    }
    if (output) pclose(output);
}

std::size_t dropped_lines(const std::filesystem::path &trace) {
    std::ifstream file(trace);
    std::size_t found = 0;
    for (std::string line; std::getline(file, line);) found += line.find(R"("name":"dropped")") != std::string::npos;
    return found;
}

}  // namespace

int main(int argc, char **argv) {
    if (argc == 2 && std::strcmp(argv[1], "--measure") == 0) return measure();
    const int turns = argc == 4 ? std::atoi(argv[3]) : 5;
    if (argc < 3 || argc > 4 || turns < 1) {
        std::fprintf(stderr, "usage: %s LIBCURB NOOP_FOLDER [TURNS]\n", argv[0]);
        return 2;
    }
    namespace fs = std::filesystem;
    const fs::path base = fs::temp_directory_path() / ("curb-trace-cost-" + std::to_string(getpid()));
    const fs::path plain = base.string() + ".json", traced = base.string() + "-traced.json",
                   trace = base.string() + ".trace";
    const std::string cap = R"({ "version": 1, "gpu": { "*": { "cap": "64GiB" } })";
    std::ofstream(plain) << cap << " }";
    std::ofstream(traced) << cap << R"(, "trace": { "file": ")" << trace.string() << "\" } }";
    const std::string self = "'" + fs::read_symlink("/proc/self/exe").string() + "' --measure";
    const std::string driver = std::string("LD_LIBRARY_PATH='") + argv[2] + "' ";
    const auto under = [&](const fs::path &policy) {
        return driver + "CURB_POLICY='" + policy.string() + "' LD_PRELOAD='" + argv[1] + "' " + self;
    };
    Figures bare, capped, tracing;
    for (int turn = 0; turn < turns; ++turn) {
        take_turn(driver + self, bare);
        take_turn(under(plain), capped);
        take_turn(under(traced), tracing);
    }
    std::printf("%-24s %10s %10s %10s %14s %8s\n", "ns, median of a pair", "bare", "curb", "traced", "an event adds",
                "ratio");
    for (const auto &[name, values] : bare) {
        const double without = median(capped[name]), with = median(tracing[name]);
        std::printf("%-24s %10.1f %10.1f %10.1f %14.1f %8.2f\n", name.c_str(), median(values), without, with,
                    (with - without) / kEvents, with / without);
    }
    std::printf("lines that tell of dropped events in the last trace: %zu\n", dropped_lines(trace));
    for (const fs::path &file : {plain, traced, trace}) fs::remove(file);
    return bare.empty() ? 1 : 0;
}
