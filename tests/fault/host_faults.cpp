// Makes each allocation within libcurb.so, and each of its system calls, fail once, then from there on for a while. The
// program must run on as without curb, or be refused (CUDA_ERROR_OUT_OF_MEMORY); its cap must hold; and once there is
// memory again, curb must work again.
//
//   LD_PRELOAD=libcurb.so host_faults allocations|calls [WAY [CALL NUMBER [lasting]]]
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "interposed.hpp"
#include "matrix.hpp"
#include "runs.hpp"

using namespace fault;

namespace {

constexpr int kErrors = 5;  // the most that interposed.cpp has for one system call

}  // namespace

int main(int argc, char **argv) {
    const bool allocations = argc > 1 && std::strcmp(argv[1], "allocations") == 0;
    if (!find_library()) {
        std::printf("libcurb.so is not loaded\n");
        return 2;
    }
    Runs runs([=] { return std::make_unique<HostCalls>(allocations ? Kind::allocation : Kind::system_call); }, false);
    const auto figure = allocations ? matrix::Name::allocation_faults : matrix::Name::system_call_faults;
    std::vector<Trial> trials;
    for (const Way &way : ways()) {
        if (argc > 2 && std::strcmp(argv[2], way.name) != 0) continue;
        const std::uint64_t calls = runs.calls(way, false);
        if (argc > 4) {
            const bool lasting = std::strcmp(argv[argc - 1], "lasting") == 0;
            runs.run({&way, {std::strtoull(argv[3], nullptr, 10), std::atoi(argv[4]), false, lasting}});
        }
        for (std::uint64_t call = 1; call <= calls; ++call)
            for (int number = 0; number < (allocations ? 1 : kErrors); ++number)
                for (const bool lasting : {false, true})
                    if (!lasting || (allocations && matrix::is_nightly()))
                        trials.push_back({&way, {call, number, false, lasting}});
    }
    if (argc > 4) return runs.failures() != 0;
    const std::uint64_t wanted = argc > 2 ? trials.size() : matrix::figure(figure) / CURB_SHARE;
    const std::uint64_t reached = runs.run(std::move(trials), wanted, fault::seed());
    if (argc == 2) matrix::report(figure, reached);
    return runs.failures() != 0 || (argc == 2 && reached < wanted);
}
