// The families of memory that fit under a cap of 1 GiB: all but those that make a second context.
#pragma once

#include <vector>

#include "families.hpp"

inline std::vector<const char *> families_under_a_small_cap() {
    std::vector<const char *> names;
    for (const families::Family &family : families::families())
        if (family.memory.trait != families::Trait::context) names.push_back(family.name);
    return names;
}
