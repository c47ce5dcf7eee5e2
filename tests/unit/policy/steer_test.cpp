// Which environment variables a policy sets before main, beside those that are set already.
#include "policy/steer.hpp"

#include <algorithm>
#include <map>
#include <string_view>

#include "catch.hpp"
#include "policies.hpp"

using namespace curb::policy;

namespace {

using Variables = std::vector<std::pair<std::string, std::string>>;

// Returns the variables to set beside those that are `there`.
Variables beside(const Policy &policy, const std::map<std::string, std::string> &there) {
    return variables_to_set(policy, [&](const char *name) {
        const auto found = there.find(name);
        return found == there.end() ? nullptr : found->second.c_str();
    });
}
Variables beside(const FrameworksPolicy &frameworks, const std::map<std::string, std::string> &there) {
    Policy policy;
    policy.frameworks = frameworks;
    return beside(policy, there);
}

bool sets(const Variables &variables, std::string_view name) {
    return std::any_of(variables.begin(), variables.end(), [&](const auto &one) { return one.first == name; });
}

const FrameworksPolicy kSteer{.steer = true, .env = {}};

// Returns the presets of the table for this case.
std::vector<Preset> of(SteerWhen when) {
    std::vector<Preset> out;
    for (const Preset &preset : presets())
        if (preset.when == when) out.push_back(preset);
    return out;
}
const std::vector<Preset> kPresets = of(SteerWhen::steered);
const Variables kForACap{{"TF_DEVICE_MIN_SYS_MEMORY_IN_MB", "225"}};

}  // namespace

TEST_CASE("Without steering and without a cap nothing is set; a cap sets what TensorFlow needs to use all of it") {
    Policy own, ceiling, variable, growth;
    own.gpu = {GpuRule{}, capped("*", "75%")};
    ceiling.ceiling = {capped("*", "8GiB")};
    variable.narrowed_to = {size("4GiB")};
    growth.gpu = {grown("*", {.start = "2GiB"})};
    for (const Policy &with_cap : {own, ceiling, variable}) CHECK(beside(with_cap, {}) == kForACap);
    for (const Policy &uncapped : {Policy(), growth}) CHECK(beside(uncapped, {}).empty());
    for (const char *value : {"1800", ""}) CHECK(beside(own, {{kForACap[0].first, value}}).empty());
    own.frameworks.steer = false;
    CHECK(beside(own, {}).empty());
}

TEST_CASE("Steering sets every preset, in the order of the table: frameworks grow, and can free memory") {
    Variables expected;
    for (const Preset &preset : kPresets) expected.emplace_back(preset.name, preset.value);
    CHECK(beside(kSteer, {}) == expected);
    const std::map<std::string, std::string> by_name(expected.begin(), expected.end());
    CHECK(by_name.at("TF_FORCE_GPU_ALLOW_GROWTH") == "true");
    CHECK(by_name.at("XLA_PYTHON_CLIENT_PREALLOCATE") == "false");
    CHECK(by_name.at("PYTORCH_CUDA_ALLOC_CONF") == "expandable_segments:True");
    CHECK(by_name.size() == expected.size());  // none twice
    for (const auto &[name, value] : expected)
        for (const char *share : {"FRACTION", "fraction", "LIMIT", "limit"}) CHECK_THAT(name + value, !contains(share));
    Policy policy;
    policy.gpu = {capped("*", "4GiB")};
    policy.frameworks.steer = true;
    CHECK(beside(policy, {}).size() == presets().size());  // with those that a cap sets
    CHECK(sets(beside(policy, {}), kForACap[0].first));
}

TEST_CASE("A preset that is set already, even to nothing, is left as it is, and the others are set") {
    for (const Preset &preset : kPresets) {
        for (const char *value : {"something else", ""}) {
            const Variables set = beside(kSteer, {{preset.name, value}});
            INFO(preset.name << "=" << value);
            CHECK_FALSE(sets(set, preset.name));
            CHECK(set.size() == kPresets.size() - 1);
        }
    }
}

TEST_CASE("A preset is not set beside a variable that replaces it") {
    CHECK(sets(beside(kSteer, {}), "PYTORCH_CUDA_ALLOC_CONF"));
    CHECK_FALSE(sets(beside(kSteer, {{"PYTORCH_ALLOC_CONF", "backend:native"}}), "PYTORCH_CUDA_ALLOC_CONF"));
    const FrameworksPolicy own{.steer = true, .env = Environment{{"PYTORCH_ALLOC_CONF", "backend:native"}}};
    CHECK_FALSE(sets(beside(own, {}), "PYTORCH_CUDA_ALLOC_CONF"));
    CHECK(sets(beside(own, {}), "PYTORCH_ALLOC_CONF"));
    for (const Preset &preset : kPresets) {
        INFO(preset.name);
        if (*preset.unless) CHECK_FALSE(sets(beside(kSteer, {{preset.unless, ""}}), preset.name));
    }
}

TEST_CASE("The policy's own variables are set without steering, unless the program has them") {
    const FrameworksPolicy own{.steer = false, .env = Environment{{"A", "1"}, {"B", ""}}};
    CHECK(beside(own, {}) == Variables{{"A", "1"}, {"B", ""}});
    CHECK(beside(own, {{"A", "0"}}) == Variables{{"B", ""}});
    CHECK(beside(own, {{"A", ""}, {"B", "2"}}).empty());
}

TEST_CASE("The policy's own variables come before the presets, and instead of those of the same name") {
    const FrameworksPolicy own{.steer = true, .env = Environment{{"TF_GPU_ALLOCATOR", "bfc"}, {"Z", "z"}}};
    const Variables set = beside(own, {});
    REQUIRE(set.size() == kPresets.size() + 1);
    CHECK(set[0] == std::pair<std::string, std::string>("TF_GPU_ALLOCATOR", "bfc"));
    CHECK(set[1] == std::pair<std::string, std::string>("Z", "z"));
    CHECK_FALSE(
        sets(beside(own, {{"TF_GPU_ALLOCATOR", "cuda_malloc"}}), "TF_GPU_ALLOCATOR"));  // the program's own stays
    CHECK(std::count_if(set.begin(), set.end(), [](const auto &one) { return one.first == "TF_GPU_ALLOCATOR"; }) == 1);
}
