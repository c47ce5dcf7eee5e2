// Ways in which programs use memory. Each runs under a policy, reads the books when it holds the most, frees
// everything, and reads the books again.
#pragma once

#include <functional>
#include <vector>

#include "program.hpp"

namespace fault {

struct Way {
    const char *name;
    const char *policy;  // JSON, in which %d is a folder of the run's own; "": none
    std::function<void(Program &)> run;
};

std::vector<Way> &ways();

struct AddWay {
    explicit AddWay(const Way &way) { ways().push_back(way); }
};
#define WAY(name, policy)                                         \
    static void name(fault::Program &p);                          \
    static const fault::AddWay add_##name({#name, policy, name}); \
    static void name(fault::Program &p)

inline constexpr const char *kNoPolicy = "";
inline constexpr const char *kCapped = R"({"version": 1, "gpu": {"*": {"cap": "2GiB"}}})";
inline constexpr Bytes kCap = 2 * GiB;

}  // namespace fault
