// What an allocation and its free cost with a cache, at several sizes, over a driver that does nothing: what is printed
// is curb's own time, and a real driver's wait for an idle device (0.4 us on an H100) comes on top. Printed, never
// judged.
//
//   cache_hits LIBCURB NOOP_FOLDER     runs itself bare, under curb, and under curb with a cache
//   cache_hits --measure KEPT          one run, with so many other blocks kept: a line "NAME NANOSECONDS" for each size

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
#include <vector>

#include "cuda_abi.h"

namespace {

constexpr int kBatches = 51, kCalls = 5'000;
constexpr std::size_t kKiB = 1 << 10, kMiB = 1 << 20;

double median(std::vector<double> values) {
    std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
    return values[values.size() / 2];
}

template <class F>
F *find(void *library, const char *name) {
    return reinterpret_cast<F *>(dlsym(library, name));
}

int measure(std::size_t kept) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) return 1;
    const auto alloc = find<decltype(cuMemAlloc_v2)>(driver, "cuMemAlloc_v2");
    const auto free_memory = find<decltype(cuMemFree_v2)>(driver, "cuMemFree_v2");
    CUcontext context = nullptr;
    find<decltype(cuInit)>(driver, "cuInit")(0);
    find<decltype(cuDevicePrimaryCtxRetain)>(driver, "cuDevicePrimaryCtxRetain")(&context, 0);
    std::vector<CUdeviceptr> others(kept);
    for (std::size_t i = 0; i < kept; ++i) alloc(&others[i], (i + 2) * kKiB);
    for (const CUdeviceptr block : others) free_memory(block);
    const std::map<std::size_t, const char *> sizes{{4 * kKiB, "4 KiB"},     {64 * kKiB, "64 KiB"},
                                                    {1 * kMiB, "1 MiB"},     {2 * kMiB, "2 MiB"},
                                                    {256 * kMiB, "256 MiB"}, {8192 * kMiB, "8 GiB"}};
    for (const auto &[bytes, name] : sizes) {
        std::vector<double> batches;
        for (int batch = 0; batch < kBatches; ++batch) {
            using Clock = std::chrono::steady_clock;
            const auto start = Clock::now();
            for (int call = 0; call < kCalls; ++call) {
                CUdeviceptr block = 0;
                alloc(&block, bytes);
                free_memory(block);
            }
            batches.push_back(std::chrono::duration<double, std::nano>(Clock::now() - start).count() / kCalls);
        }
        std::printf("%s %.1f\n", name, median(batches));
    }
    return 0;
}

using Figures = std::vector<std::pair<std::string, double>>;

Figures run(const std::string &command) {
    Figures figures;
    FILE *output = popen(command.c_str(), "r");
    std::array<char, 256> line{};
    while (output && fgets(line.data(), line.size(), output)) {
        const std::string text = line.data();
        const std::size_t space = text.rfind(' ');
        if (space != std::string::npos) figures.emplace_back(text.substr(0, space), std::atof(text.c_str() + space));
    }
    if (output) pclose(output);
    return figures;
}

}  // namespace

int main(int argc, char **argv) {
    if (argc == 3 && std::strcmp(argv[1], "--measure") == 0) return measure(std::strtoul(argv[2], nullptr, 10));
    if (argc != 3) {
        std::fprintf(stderr, "usage: %s LIBCURB NOOP_FOLDER\n", argv[0]);
        return 2;
    }
    namespace fs = std::filesystem;
    const fs::path policy = fs::temp_directory_path() / ("curb-cache-hits-" + std::to_string(getpid()) + ".json");
    const auto with = [&](const std::string &cache) {
        std::ofstream(policy) << R"({ "version": 1, "log": { "level": "off" }, "gpu": { "*": { "cap": "64GiB")" << cache
                              << " } } }";
    };
    const std::string self = "'" + fs::read_symlink("/proc/self/exe").string() + "' --measure ";
    const std::string driver = std::string("LD_LIBRARY_PATH='") + argv[2] + "' ";
    const std::string curb = driver + "CURB_POLICY='" + policy.string() + "' LD_PRELOAD='" + argv[1] + "' ";
    with("");
    const Figures bare = run(driver + self + "0"), capped = run(curb + self + "0");
    with(R"(, "cache": { "max": "16GiB" })");
    const Figures alone = run(curb + self + "0"), among = run(curb + self + "10000");
    fs::remove(policy);
    std::printf("%-24s %10s %10s %10s %14s\n", "ns, median of a pair", "bare", "curb", "cache", "10,000 kept");
    for (std::size_t i = 0; i < std::min({bare.size(), capped.size(), alone.size(), among.size()}); ++i)
        std::printf("%-24s %10.1f %10.1f %10.1f %14.1f\n", bare[i].first.c_str(), bare[i].second, capped[i].second,
                    alone[i].second, among[i].second);
    return bare.empty() ? 1 : 0;
}
