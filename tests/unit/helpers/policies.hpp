// Policies of devices, made in a few words for tests.
#pragma once

#include <optional>
#include <string_view>
#include <utility>

#include "catch.hpp"
#include "policy/policy.hpp"

namespace curb::policy {

inline GpuKey key(std::string_view text) {
    const auto parsed = parse_gpu_key(text);
    INFO(text);
    REQUIRE(parsed);
    return *parsed;
}

inline Size size(std::string_view text) {
    const auto parsed = parse_size(text);
    INFO(text);
    REQUIRE(parsed);
    return *parsed;
}

// The device that the process sees under this number.
inline GpuIdentity gpu(int ordinal) {
    GpuIdentity out;
    out.ordinal = ordinal;
    return out;
}

inline GpuPolicy cap_of(std::string_view cap) {
    GpuPolicy policy;
    policy.cap = size(cap);
    return policy;
}

// The growth of a policy, in a file's words. Members that are left out are not set.
struct GrowthWords {
    std::string_view start{};
    std::string_view step{};
    double factor = 0;
    std::optional<Duration> every{};
    std::string_view keep_free{};
    std::optional<Duration> wait{};
};
inline GpuPolicy growth_of(const GrowthWords &said) {
    const auto maybe = [](std::string_view text) { return text.empty() ? std::nullopt : std::optional(size(text)); };
    GpuPolicy policy;
    policy.growth.start = maybe(said.start);
    policy.growth.step = maybe(said.step);
    if (said.factor != 0) policy.growth.factor = said.factor;
    policy.growth.every = said.every;
    policy.growth.keep_free = maybe(said.keep_free);
    policy.growth.wait = said.wait;
    return policy;
}

inline GpuPolicy report_of(Report report) {
    GpuPolicy policy;
    policy.report = report;
    return policy;
}

inline GpuRule capped(std::string_view of, std::string_view cap) { return {key(of), cap_of(cap)}; }
inline GpuRule grown(std::string_view of, const GrowthWords &said) { return {key(of), growth_of(said)}; }
inline GpuRule reported(std::string_view of, Report report) { return {key(of), report_of(report)}; }

inline Layer layer_of(std::string_view cap) {
    Layer layer;
    layer.gpu = {capped("*", cap)};
    return layer;
}

}  // namespace curb::policy
