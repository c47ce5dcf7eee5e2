// The environment variables that a policy sets before a program's main, so that TensorFlow can use a cap, and
// frameworks take memory as they need it and can give it back.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "policy/policy.hpp"

namespace curb::policy {

// When a variable of steer.def is set.
enum class SteerWhen : std::uint8_t {
    capped,   // a device has a cap, and "steer" is not false
    steered,  // "steer" is true
};

// A row of steer.def.
struct Preset {
    SteerWhen when;
    const char *name;
    const char *value;
    const char *unless;  // if this one is set, do not set `name`; "": none
};
std::span<const Preset> presets() noexcept;

// True if the policy caps a device, by its own rules, the ceiling's or CURB_CAP. Pure.
bool has_cap(const Policy &policy) noexcept;

// Returns the variables to set: those of the policy, then those of steer.def. Leaves out variables that are set in
// `environment`, which returns null for an unset one. Pure; may throw std::bad_alloc.
std::vector<std::pair<std::string, std::string>> variables_to_set(
    const Policy &policy, const std::function<const char *(const char *)> &environment);

}  // namespace curb::policy
