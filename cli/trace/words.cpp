#include <algorithm>
#include <array>
#include <cstdio>
#include <ctime>
#include <map>

#include "summary.hpp"

namespace curb::cli {
namespace {

std::string times(std::size_t n) { return n == 1 ? "once" : std::to_string(n) + " times"; }

std::string stamp(std::int64_t unix_ns, const char *format) {
    const std::time_t seconds = unix_ns / static_cast<std::int64_t>(kSecond);
    std::tm local{};
    std::array<char, 64> out;
    ::localtime_r(&seconds, &local);
    return {out.data(), std::strftime(out.data(), out.size(), format, &local)};
}

std::string hms(std::uint64_t seconds) {
    std::array<char, 32> out;
    std::snprintf(out.data(), out.size(), "%02llu:%02llu:%02llu", static_cast<unsigned long long>(seconds / 3600),
                  static_cast<unsigned long long>(seconds / 60 % 60), static_cast<unsigned long long>(seconds % 60));
    return out.data();
}

// "refused 2 times (the cap)"
std::string refused_text(const GpuSummary &gpu) {
    std::map<policy::Obstacle, std::size_t> by;
    for (const Moment *one : gpu.refusals) ++by[one->why()];
    std::string out = "refused " + times(gpu.refusals.size()) + ", for ";
    bool first = true;
    for (const auto &[why, count] : by) {
        out += std::exchange(first, false) ? "" : ", ";
        out += policy::obstacle_text(why);
        if (by.size() > 1) out += " " + times(count);
    }
    return out;
}

}  // namespace

std::string gpu_name(int gpu) { return "cuda:" + std::to_string(gpu); }

std::string pointer_text(std::uint64_t pointer) {
    std::array<char, 24> out;
    std::snprintf(out.data(), out.size(), "0x%llx", static_cast<unsigned long long>(pointer));
    return out.data();
}

std::string clock_text(const Recording &recording, std::uint64_t ns) {
    if (recording.header.unix_ns > 0)
        return stamp(recording.header.unix_ns + static_cast<std::int64_t>(std::min(ns, ~std::uint64_t{0} >> 2)),
                     "%H:%M:%S");
    return hms(ns / kSecond);
}

std::string date_text(const Recording &recording) {
    return recording.header.unix_ns > 0 ? stamp(recording.header.unix_ns, "%Y-%m-%d %H:%M:%S %Z") : std::string();
}

std::string span_text(std::uint64_t ns) {
    std::array<char, 48> out;
    const double seconds = static_cast<double>(ns) / 1e9;
    const auto whole = static_cast<unsigned long long>(ns / kSecond);
    if (ns < 1'000'000)
        std::snprintf(out.data(), out.size(), "%.0f µs", seconds * 1e6);
    else if (ns < kSecond)
        std::snprintf(out.data(), out.size(), "%.0f ms", seconds * 1e3);
    else if (ns < 60 * kSecond)
        std::snprintf(out.data(), out.size(), "%.1f s", seconds);
    else if (ns < 3600 * kSecond)
        std::snprintf(out.data(), out.size(), "%llu min %llu s", whole / 60, whole % 60);
    else
        std::snprintf(out.data(), out.size(), "%llu h %llu min", whole / 3600, whole / 60 % 60);
    return out.data();
}

std::vector<std::string> sentences(const Recording &recording, const Summary &summary) {
    std::vector<std::string> out;
    for (const GpuSummary &gpu : summary.gpus) {
        std::string text = "Peak " + policy::format_human(gpu.peak);
        if (gpu.cap) text += " of " + policy::format_human(*gpu.cap);
        text += " at " + clock_text(recording, gpu.peak_ns) + " on " + gpu_name(gpu.gpu) + "; ";
        text += gpu.refusals.empty() ? "nothing was refused" : refused_text(gpu);
        if (!gpu.waits.empty()) {
            std::uint64_t longest = 0;
            for (const Waited &wait : gpu.waits) longest = std::max(longest, wait.ended_ns - wait.began_ns);
            text += "; waited for room " + times(gpu.waits.size()) + ", at most " + span_text(longest);
        }
        if (gpu.growth_steps != 0) text += "; grew " + times(gpu.growth_steps);
        out.push_back(text + ".");
    }
    std::map<std::string, std::pair<std::size_t, std::int64_t>> by_trigger;
    for (const Release &release : summary.releases) {
        auto &[count, bytes] = by_trigger[release.trigger];
        ++count;
        bytes = policy::plus(bytes, release.bytes);
    }
    for (const auto &[trigger, sum] : by_trigger) {
        const std::string how = trigger.empty() ? std::string("released") : "on " + trigger;
        out.push_back(control::size_text(sum.second) + " came back " + how +
                      (sum.first == 1 ? "." : " (" + times(sum.first) + ")."));
    }
    return out;
}

}  // namespace curb::cli
