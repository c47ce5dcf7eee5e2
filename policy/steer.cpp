#include "policy/steer.hpp"

#include <algorithm>
#include <array>

namespace curb::policy {
namespace {

constexpr auto kPresets = std::to_array<Preset>({
#define CURB_STEER(framework, when, name, value, unless, why) {SteerWhen::when, name, value, unless},
#include "policy/steer.def"
});

}  // namespace

std::span<const Preset> presets() noexcept { return kPresets; }

bool has_cap(const Policy &policy) noexcept {
    const auto caps = [](const GpuRule &rule) { return rule.policy.cap.has_value(); };
    return !policy.narrowed_to.empty() || std::any_of(policy.gpu.begin(), policy.gpu.end(), caps) ||
           std::any_of(policy.ceiling.begin(), policy.ceiling.end(), caps) || has_job_cap(policy) ||
           (policy.environment.value_or(true) && !policy.handed_in.caps.empty());
}

std::vector<std::pair<std::string, std::string>> variables_to_set(
    const Policy &policy, const std::function<const char *(const char *)> &environment) {
    std::vector<std::pair<std::string, std::string>> out;
    const Environment own = policy.frameworks.env.value_or(Environment{});
    for (const auto &[name, value] : own)
        if (!environment(name.c_str())) out.emplace_back(name, value);
    const bool steered = policy.frameworks.steer.value_or(false);
    const bool capped = policy.frameworks.steer.value_or(true) && has_cap(policy);
    const auto is_set = [&](const char *name) { return *name && (environment(name) || own.contains(name)); };
    for (const Preset &preset : kPresets)
        if ((preset.when == SteerWhen::capped ? capped : steered) && !is_set(preset.name) && !is_set(preset.unless))
            out.emplace_back(preset.name, preset.value);
    return out;
}

}  // namespace curb::policy
