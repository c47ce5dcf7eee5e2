#include "latency.hpp"

#include <chrono>
#include <map>
#include <string_view>
#include <thread>
#include <vector>

#include "environment.hpp"
#include "machine.hpp"

namespace curb::sim {

namespace {

struct Point {
    uint64_t bytes;
    double microseconds;
};
using Curve = std::vector<Point>;

// Medians on the bare driver, docs/results/driver.md. Between two sizes: a straight line.
const std::map<std::string_view, Curve> &curves() {
    static const auto &table = *new std::map<std::string_view, Curve>{
        {"cuMemAlloc_v2", {{4 * kKiB, 30.0}, {2 * kMiB, 29.4}, {256 * kMiB, 53.7}, {kGiB, 78.2}, {8 * kGiB, 24570}}},
        {"cuMemFree_v2", {{4 * kKiB, 26.8}, {2 * kMiB, 26.5}, {256 * kMiB, 98.4}, {kGiB, 292}, {8 * kGiB, 2749}}},
        {"cuMemAllocAsync", {{0, 0.66}}},
        {"cuMemAllocFromPoolAsync", {{0, 0.66}}},
        {"cuMemFreeAsync", {{0, 0.41}}},
        {"cuMemCreate", {{2 * kMiB, 9.3}, {256 * kMiB, 21.9}, {kGiB, 42}, {8 * kGiB, 23585}}},
        {"cuMemMap", {{2 * kMiB, 19.5}, {256 * kMiB, 43}, {kGiB, 58}, {8 * kGiB, 253}}},
        {"cuMemUnmap", {{2 * kMiB, 13.7}, {256 * kMiB, 25.5}, {kGiB, 30}, {8 * kGiB, 99}}},
        // The four and the three calls of a block of 2 MiB take 46 and 36 us together (an H200).
        {"cuMemAddressReserve", {{0, 5.0}}},
        {"cuMemSetAccess", {{0, 12.2}}},
        {"cuMemAddressFree", {{0, 7.9}}},
        // Pinning: 2.3 GiB/s.
        {"cuMemHostAlloc", {{0, 10}, {kGiB, 435'000}}},
        {"cuMemRelease", {{2 * kMiB, 14.4}, {256 * kMiB, 77.9}, {kGiB, 269}, {8 * kGiB, 2562}}},
        {"cuMemGetInfo_v2", {{0, 4.0}}},
        {"cuMemPoolGetAttribute", {{0, 0.086}}},
        {"cuCtxSynchronize", {{0, 0.42}}},
        {"cuCtxGetDevice", {{0, 0.057}}},
        {"cuEventRecord", {{0, 0.32}}},
        {"cuEventQuery", {{0, 0.33}}},
        // A context: 88–110 ms. The size is kGiB if the call made one, else 0.
        {"cuDevicePrimaryCtxRetain", {{0, 0}, {kGiB, 99000}}},
        {"cuCtxCreate_v2", {{0, 0}, {kGiB, 99000}}},
        // For each piece moved: 5.6 GiB out in 2.6 s and back in 1.0 s.
        {"cuCheckpointProcessCheckpoint", {{0, 0}, {kGiB, 464'000}}},
        {"cuCheckpointProcessRestore", {{0, 0}, {kGiB, 178'000}}},
        {"nvmlInit_v2", {{0, 9000}}},
        {"nvmlDeviceGetMemoryInfo", {{0, 6.5}}},
        {"nvmlDeviceGetComputeRunningProcesses_v3", {{0, 22}}},
    };
    return table;
}

double at(const Curve &curve, uint64_t bytes) {
    if (bytes <= curve.front().bytes) return curve.front().microseconds;
    for (size_t i = 1; i < curve.size(); ++i) {
        const Point &low = curve[i - 1], &high = curve[i];
        if (bytes <= high.bytes)
            return low.microseconds + (high.microseconds - low.microseconds) * static_cast<double>(bytes - low.bytes) /
                                          static_cast<double>(high.bytes - low.bytes);
    }
    return curve.back().microseconds;
}

bool on() {
    static const bool value = environment_is("CURB_SIM_LATENCY", "h100");
    return value;
}

}  // namespace

std::chrono::nanoseconds time_of_copy(Bus bus, uint64_t bytes) {
    // docs/results/driver.md, and docs/results/moves-2026-11-28-nvidia-h200.md.
    double gib_per_s = 0;
    switch (bus) {
        case Bus::pinned: gib_per_s = 50; break;
        case Bus::pageable_in: gib_per_s = 6.2; break;
        case Bus::pageable_out: gib_per_s = 1.2; break;
    }
    const double seconds = on() ? static_cast<double>(bytes) / static_cast<double>(kGiB) / gib_per_s : 0;
    return std::chrono::nanoseconds(static_cast<int64_t>(seconds * 1e9));
}

void spend_time_of(const char *name, uint64_t bytes) {
    if (!on()) return;
    std::string_view key = name;
    if (key.ends_with("_ptsz") || key.ends_with("_ptds")) key.remove_suffix(5);
    const auto curve = curves().find(key);
    if (curve == curves().end()) return;
    using Microseconds = std::chrono::duration<double, std::micro>;
    const Microseconds time(at(curve->second, bytes));
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::nanoseconds>(time);
    if (time > Microseconds(200)) std::this_thread::sleep_until(end - std::chrono::microseconds(100));
    while (std::chrono::steady_clock::now() < end) {
    }
}

}  // namespace curb::sim
