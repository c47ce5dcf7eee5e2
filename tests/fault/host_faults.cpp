// Each allocation within libcurb.so, and each call that it makes to the system, fails once, then from there on for a
// while: the program runs on as without curb, or is refused (CUDA_ERROR_OUT_OF_MEMORY); its cap is kept; and once there
// is memory again, curb works again.
//
//   LD_PRELOAD=libcurb.so host_faults allocations|calls [WAY [CALL NUMBER [lasting]]]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "interposed.hpp"
#include "matrix.hpp"
#include "runs.hpp"

using namespace fault;

int main(int argc, char **argv) {
    const bool allocations = argc > 1 && std::strcmp(argv[1], "allocations") == 0;
    if (!find_library()) {
        std::printf("libcurb.so is not loaded\n");
        return 2;
    }
    Runs runs([=] { return std::make_unique<HostCalls>(allocations ? Kind::allocation : Kind::system_call); }, false);
    const auto figure = allocations ? matrix::Name::allocation_faults : matrix::Name::system_call_faults;
    const std::uint64_t wanted = matrix::figure(figure);
    for (const Way &way : ways()) {
        if (argc > 2 && std::strcmp(argv[2], way.name) != 0) continue;
        const std::uint64_t calls = runs.calls(way, false), before = runs.reached();
        if (argc > 4) {
            runs.run(way, {std::strtoull(argv[3], nullptr, 10), std::atoi(argv[4]), false,
                           std::strcmp(argv[argc - 1], "lasting") == 0});
            continue;
        }
        for (std::uint64_t call = 1; call <= calls; ++call) runs.run(way, {call, static_cast<int>(call), false, false});
        std::printf("%s: %llu calls, %llu faults\n", way.name, static_cast<unsigned long long>(calls),
                    static_cast<unsigned long long>(runs.reached() - before));
        std::fflush(stdout);
    }
    if (argc > 2) return runs.failures() != 0;
    matrix::report(figure, runs.reached());
    return runs.failures() != 0 || runs.reached() < wanted;
}
