// Every call that reaches the driver while programs run under curb fails once, the program's own and curb's, with each
// of several codes: the program sees the driver's error, or none that it would not see without curb; it can try again;
// and the books are the driver's, and those of a run without a fault.
//
//   LD_PRELOAD=libcurb.so driver_faults [WAY [CALL CODE [others] [lasting]]]
//
// CURB_SEED repeats the random part of a nightly run.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>

#include "matrix.hpp"
#include "runs.hpp"
#include "sim.h"

namespace {

using namespace fault;

class DriverCalls final : public Injector {
  public:
    void plan(const Fault &fault) override { curb_sim_fail(fault.call, fault.code, fault.others, fault.lasting); }
    void pause(bool pause) override { curb_sim_fail_pause(pause); }
    const char *failed() override { return curb_sim_failed(nullptr); }
    std::uint64_t calls() override {
        std::uint64_t calls = 0;
        curb_sim_failed(&calls);
        return calls;
    }
    [[nodiscard]] bool is_of_driver() const override { return true; }
};

constexpr int kCodes[] = {CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_INVALID_CONTEXT,
                          CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_UNKNOWN};

}  // namespace

int main(int argc, char **argv) {
    Runs runs([] { return std::make_unique<DriverCalls>(); }, true);
    const bool lasting = argc > 5 && std::strcmp(argv[argc - 1], "lasting") == 0;
    const bool only_others = argc > 4 && std::strcmp(argv[4], "others") == 0;
    for (const Way &way : ways()) {
        if (argc > 1 && std::strcmp(argv[1], way.name) != 0) continue;
        for (const bool others : {false, true}) {
            const std::uint64_t calls = runs.calls(way, others), before = runs.reached();
            if (argc > 3) {
                if (others == only_others)
                    runs.run(way, {std::strtoull(argv[2], nullptr, 10), std::atoi(argv[3]), others, lasting});
                continue;
            }
            for (std::uint64_t call = 1; call <= calls; ++call)
                for (const int code : kCodes) runs.run(way, {call, code, others, false});
            std::printf("%s: %llu calls%s, %llu faults\n", way.name, static_cast<unsigned long long>(calls),
                        others ? " of curb's threads" : "", static_cast<unsigned long long>(runs.reached() - before));
        }
    }
    if (argc > 1) return runs.failures() != 0;
    matrix::report(matrix::Name::driver_faults, runs.reached());
    return runs.failures() != 0 || runs.reached() < matrix::figure(matrix::Name::driver_faults);
}
