// Which environment variables a policy sets before a program's main, so that frameworks take memory as they need it and
// can give it back.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "policy/policy.hpp"

namespace curb::policy {

// The variables to set, in the order of the policy's own, then the presets (steer.def). None that is set already, for
// which `environment` is asked (null: unset). Pure; may throw std::bad_alloc.
std::vector<std::pair<std::string, std::string>> variables_to_set(
    const FrameworksPolicy &frameworks, const std::function<const char *(const char *)> &environment);

}  // namespace curb::policy
