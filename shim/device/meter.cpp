#include "device/meter.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <ctime>
#include <span>
#include <vector>

#include "base/keep_errno.hpp"
#include "control/proc.hpp"
#include "driver/driver.hpp"
#include "driver/nvml.hpp"

namespace curb::shim {
namespace {

// NVML's spelling of a UUID: the prefix and the bytes in the usual groups.
std::array<char, 48> uuid_text(const char *prefix, const CUuuid &uuid) noexcept {
    std::array<char, 48> text{};
    char *out = text.data() + std::snprintf(text.data(), text.size(), "%s", prefix);
    for (int i = 0; i < 16; ++i) {
        if (i == 4 || i == 6 || i == 8 || i == 10) *out++ = '-';
        out += std::snprintf(out, 3, "%02x", static_cast<unsigned char>(uuid.bytes[i]));
    }
    return text;
}

using Processes = std::span<const nvmlProcessInfo_t>;

bool has_figure(const nvmlProcessInfo_t &one) noexcept { return one.usedGpuMemory != ~0ULL; }

std::optional<Bytes> own_figure(Processes processes) noexcept {
    const auto self = static_cast<unsigned>(getpid());
    for (const nvmlProcessInfo_t &one : processes)
        if (one.pid == self && has_figure(one)) return one.usedGpuMemory;
    return std::nullopt;
}

// Returns MiB << 32 | pid, so that one answer of curb-nvml has both.
std::optional<std::uint64_t> largest_of_others(Processes processes) noexcept {
    const auto self = static_cast<unsigned>(getpid());
    std::uint64_t out = 0;
    for (const nvmlProcessInfo_t &one : processes)
        if (one.pid != self && has_figure(one))
            out = std::max<std::uint64_t>(out, one.usedGpuMemory / policy::MiB << 32 | one.pid);
    return out >> 32 != 0 ? std::optional(out) : std::nullopt;
}

// A larger process count from NVML must be wrong and is rejected.
constexpr unsigned kMostProcesses = 1U << 16;

// Returns the bytes that programs can still allocate of the host's memory, at most `total`. nullopt if /proc/meminfo
// cannot be read. Keeps errno.
std::optional<Bytes> available_of_host(Bytes total) noexcept try {
    const KeepErrno keep_errno;
    const auto meminfo = control::file_text("/proc/meminfo");
    if (!meminfo || control::field_in(*meminfo, "MemAvailable:").empty()) return std::nullopt;
    return std::min(control::number_in(*meminfo, "MemAvailable:") * policy::KiB, total);
} catch (...) {
    return std::nullopt;  // out of host memory
}

// nullopt if the figures cannot be those of a device of `total` bytes. NVML's total is somewhat above the driver's.
std::optional<nvmlMemory_t> memory_of(nvmlDevice_t on, Bytes total) noexcept {
    nvmlMemory_t memory{};
    if (!on || nvml::functions()->memory(on, &memory) != NVML_SUCCESS) return std::nullopt;
    if (memory.total / 2 > total || memory.used > memory.total || memory.free > memory.total) return std::nullopt;
    return memory;
}

}  // namespace

std::string Meter::gpu_uuid() const { return uuid_text("GPU-", gpu_).data(); }

std::string Meter::mig_uuid() const { return is_mig() ? uuid_text("MIG-", own_).data() : ""; }

nvmlDevice_t Meter::device() noexcept {
    nvmlDevice_t device = device_;
    const nvml::Functions *library = device ? nullptr : nvml::functions();
    // In MIG mode NVML reports the bytes a process holds of its instance, not of the GPU.
    if (library && library->by_uuid(uuid_text(is_mig() ? "MIG-" : "GPU-", own_).data(), &device) == NVML_SUCCESS)
        device_ = device;
    return device;
}

std::optional<int> Meter::index() noexcept {
    if (const auto known = known_index()) return known;
    const auto index = ask(Figure::index);
    if (!index) return std::nullopt;
    after_index_ = static_cast<int>(*index) + 1;
    return static_cast<int>(*index);
}

std::optional<Bytes> Meter::held_by_process() noexcept { return ask(Figure::held); }

std::optional<std::uint64_t> Meter::last_run(std::uint64_t since_ms) noexcept {
    return ask(Figure::last_run, since_ms);
}

std::optional<Bytes> Meter::above_soft_limit() noexcept { return ask(Figure::above_soft_limit); }

std::optional<Meter::Holder> Meter::largest_other() noexcept {
    const auto packed = ask(Figure::largest_other);
    if (!packed) return std::nullopt;
    const Holder out{static_cast<int>(*packed & 0xffffffff), (*packed >> 32) * policy::MiB};
    return out.bytes <= total_ ? std::optional(out) : std::nullopt;
}

std::optional<Bytes> Meter::used_by_all() noexcept { return is_hosts_ ? std::nullopt : ask(Figure::used); }

std::optional<Bytes> Meter::free() noexcept {
    if (const auto free = is_hosts_ ? available_of_host(total_) : ask(Figure::free)) return free;
    std::size_t bytes = 0, total = 0;
    if (driver().cuMemGetInfo_v2(&bytes, &total) == CUDA_SUCCESS) return bytes;
    return std::nullopt;
}

template <class Pick>
std::optional<std::uint64_t> Meter::read_processes(Pick pick) {
    const nvmlDevice_t on = device();
    std::array<nvmlProcessInfo_t, 128> few{};
    auto count = static_cast<unsigned>(few.size());
    if (!on) return std::nullopt;
    nvmlReturn_t result = nvml::functions()->processes(on, &count, few.data());
    if (result == NVML_SUCCESS) return pick({few.data(), std::min<std::size_t>(count, few.size())});
    // For more than fit on the stack. Doubles the space, as processes may start after the count.
    std::vector<nvmlProcessInfo_t> many;
    for (int tries = 0; tries < 3 && result == NVML_ERROR_INSUFFICIENT_SIZE && count <= kMostProcesses; ++tries) {
        many.resize(std::size_t{count} * 2);
        count = static_cast<unsigned>(many.size());
        result = nvml::functions()->processes(on, &count, many.data());
    }
    if (result != NVML_SUCCESS) return std::nullopt;
    return pick({many.data(), std::min<std::size_t>(count, many.size())});
}

std::optional<std::uint64_t> Meter::read(Figure figure, std::uint64_t since_ms) noexcept try {
    switch (figure) {
        case Figure::index: return read_index();
        case Figure::held: {
            const auto held = read_processes(own_figure);
            return held && *held <= total_ ? held : std::nullopt;
        }
        case Figure::largest_other: return read_processes(largest_of_others);
        case Figure::last_run: return read_last_run(since_ms);
        case Figure::above_soft_limit: return read_above_soft_limit();
        case Figure::used:
        case Figure::free: break;
    }
    const auto memory = memory_of(device(), total_);
    if (!memory) return std::nullopt;
    return figure == Figure::used ? memory->used : memory->free;
} catch (...) {
    return std::nullopt;  // out of host memory
}

std::optional<std::uint64_t> Meter::read_index() const noexcept {
    const nvml::Functions *library = nvml::functions();
    nvmlDevice_t gpu = nullptr;
    unsigned index = 0;
    if (!library || library->by_uuid(uuid_text("GPU-", gpu_).data(), &gpu) != NVML_SUCCESS ||
        library->index(gpu, &index) != NVML_SUCCESS)
        return std::nullopt;
    return index;
}

std::optional<std::uint64_t> Meter::read_above_soft_limit() {
    const nvmlDevice_t on = device();
    if (!on || !nvml::functions()->memory_limits) return std::nullopt;
    // "0::/user.slice/…": version 2 of cgroups, the only one with such limits.
    const std::string all = control::proc_text(getpid(), "cgroup");
    const std::size_t begin = all.find("0::/");
    if (begin == std::string::npos) return std::nullopt;
    const std::string path = "/sys/fs/cgroup" + all.substr(begin + 3, all.find('\n', begin) - begin - 3);
    nvmlGetMemoryLimits_v1_t limits{};
    limits.nameSpace = path.c_str();
    if (nvml::functions()->memory_limits(on, &limits) != NVML_SUCCESS) return std::nullopt;
    if (limits.softLimit == 0 || limits.softLimit == ~0ULL) return std::nullopt;
    return limits.currentUsed - std::min(limits.currentUsed, limits.softLimit);
}

std::optional<std::uint64_t> Meter::read_last_run(std::uint64_t since_ms) {
    const nvmlDevice_t on = device();
    if (!on || !nvml::functions()->utilization) return std::nullopt;
    timespec wall{};
    clock_gettime(CLOCK_REALTIME, &wall);
    const auto now_us =
        static_cast<std::uint64_t>(wall.tv_sec) * 1'000'000 + static_cast<std::uint64_t>(wall.tv_nsec) / 1000;
    const std::uint64_t since_us = now_us - std::min(now_us, since_ms * 1000);
    std::vector<nvmlProcessUtilizationSample_t> samples(128);
    auto count = static_cast<unsigned>(samples.size());
    nvmlReturn_t result = nvml::functions()->utilization(on, samples.data(), &count, since_us);
    if (result == NVML_ERROR_INSUFFICIENT_SIZE && count <= kMostProcesses) {
        samples.resize(count + samples.size());  // more processes may have started since the count
        count = static_cast<unsigned>(samples.size());
        result = nvml::functions()->utilization(on, samples.data(), &count, since_us);
    }
    if (result != NVML_SUCCESS) return std::nullopt;
    std::optional<std::uint64_t> last;
    for (unsigned i = 0; i < count && i < samples.size(); ++i) {
        const auto &one = samples[i];
        if (one.pid != static_cast<unsigned>(getpid()) || one.timeStamp <= since_us) continue;
        if (one.smUtil + one.memUtil + one.encUtil + one.decUtil == 0) continue;
        const std::uint64_t age = (now_us - std::min<std::uint64_t>(now_us, one.timeStamp)) / 1000;
        if (!last || age < *last) last = age;
    }
    return last;
}

}  // namespace curb::shim
