// main() of the programs of scenarios: runs the one that is named.
#include <cstring>

#include "scenario.hpp"

namespace scenario {
std::vector<Scenario> &all() {
    static std::vector<Scenario> list;
    return list;
}
}  // namespace scenario

int main(int argc, char **argv) {
    if (argc == 2)
        for (const auto &scenario : scenario::all())
            if (std::strcmp(scenario.name, argv[1]) == 0) {
                scenario.run();
                return scenario::failures == 0 ? 0 : 1;
            }
    std::fprintf(stderr, "usage: %s SCENARIO\n", argv[0]);
    return 2;
}
