// What the environment says of the simulation (sim.h).
#pragma once

#include <cstdlib>
#include <string_view>

namespace curb::sim {

// Unset is empty.
inline const char *environment(const char *name) {
    const char *value = std::getenv(name);
    return value ? value : "";
}

inline bool environment_is(const char *name, std::string_view value) { return environment(name) == value; }

}  // namespace curb::sim
