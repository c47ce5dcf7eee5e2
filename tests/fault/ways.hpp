// What programs do with memory, a way each: under a policy, up to the point where they hold the most (books are read
// there), and until they have freed it all (and there).
#pragma once

#include <functional>
#include <vector>

#include "program.hpp"

namespace fault {

struct Way {
    const char *name;
    const char *policy;  // JSON; %d: a folder of the run's own; "": none
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
