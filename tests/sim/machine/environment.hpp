// The environment variables of the simulation (sim.h).
#pragma once

#include <cstdlib>
#include <string_view>

namespace curb::sim {

// Returns "" if it is unset.
inline const char *environment(const char *name) {
    const char *value = std::getenv(name);
    return value ? value : "";
}

inline bool environment_is(const char *name, std::string_view value) { return environment(name) == value; }

}  // namespace curb::sim
