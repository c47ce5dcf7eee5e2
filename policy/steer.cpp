#include "policy/steer.hpp"

#include <array>

namespace curb::policy {
namespace {

struct Preset {
    const char *name;
    const char *value;
    const char *unless;
};
constexpr auto kPresets = std::to_array<Preset>({
#define CURB_STEER(framework, name, value, unless, why) {name, value, unless},
#include "policy/steer.def"
});

}  // namespace

std::vector<std::pair<std::string, std::string>> variables_to_set(
    const FrameworksPolicy &frameworks, const std::function<const char *(const char *)> &environment) {
    std::vector<std::pair<std::string, std::string>> out;
    const Environment own = frameworks.env.value_or(Environment{});
    for (const auto &[name, value] : own)
        if (!environment(name.c_str())) out.emplace_back(name, value);
    const auto is_said = [&](const char *name) { return *name && (environment(name) || own.contains(name)); };
    for (const Preset &preset : kPresets)
        if (frameworks.steer.value_or(false) && !is_said(preset.name) && !is_said(preset.unless))
            out.emplace_back(preset.name, preset.value);
    return out;
}

}  // namespace curb::policy
