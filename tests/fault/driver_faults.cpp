// Makes every call that reaches the driver under curb fail once, the program's and curb's, with each of several codes.
// The program must see the driver's error, or no error that it would not see without curb, and can try again. The books
// must be the driver's, and those of a run without a fault.
//
//   LD_PRELOAD=libcurb.so driver_faults [WAY [CALL CODE [others|blocks]]]
//   LD_PRELOAD=libcurb.so driver_faults --sweep WAY SECONDS     sweeps in one process, for so long at the most
//   driver_faults --list                                        prints the ways
//
// Without arguments it sweeps each way in one process that keeps CUDA. Then it tries faults in processes of their own,
// in which CUDA begins: all of the_start, and as many of the other ways as the matrix wants, in random order, which
// CURB_SEED repeats. Last come some with policies that have light naps, so that curb makes large blocks itself.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "matrix.hpp"
#include "runs.hpp"
#include "sim.h"

namespace {

using namespace fault;

class DriverCalls final : public Injector {
  public:
    void plan(const Fault &fault) override { curb_sim_fail(fault.call, fault.code, fault.others); }
    void pause(bool pause) override { curb_sim_fail_pause(pause); }
    const char *failed() override { return curb_sim_failed(nullptr); }
    std::uint64_t calls() override {
        std::uint64_t calls = 0;
        curb_sim_failed(&calls);
        return calls;
    }
    [[nodiscard]] bool is_of_driver() const override { return true; }
};

const std::vector<int> kCodes = {CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_INVALID_CONTEXT,
                                 CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_UNKNOWN};

// An ordinary run fails each call of a way with two of the codes, other ones in the next way. A nightly run takes all.
std::vector<int> codes(std::size_t sweep) {
    if (matrix::is_nightly()) return kCodes;
    return {kCodes.front(), kCodes[1 + sweep % (kCodes.size() - 1)]};
}

}  // namespace

int main(int argc, char **argv) {
    if (argc > 1 && std::strcmp(argv[1], "--list") == 0) {
        for (const Way &way : ways()) std::puts(way.name);
        return 0;
    }
    Runs runs([] { return std::make_unique<DriverCalls>(); }, true);
    if (argc > 3 && std::strcmp(argv[1], "--sweep") == 0) {
        const auto way = std::find_if(ways().begin(), ways().end(),
                                      [&](const Way &one) { return std::strcmp(one.name, argv[2]) == 0; });
        if (way == ways().end()) return 2;
        for (const bool others : {false, true})
            runs.sweep(*way, others, kCodes, std::chrono::seconds(std::atoi(argv[3])), fault::seed());
        return runs.failures() != 0;
    }
    std::vector<Trial> first, others_too;
    std::uint64_t reached = 0;
    const bool one = argc > 1, one_call = argc > 3, only_others = argc > 4 && std::strcmp(argv[4], "others") == 0;
    for (const Way &way : ways()) {
        if (one && std::strcmp(argv[1], way.name) != 0) continue;
        for (const bool others : {false, true}) {
            const auto sweep = static_cast<std::size_t>(&way - ways().data()) + (others ? 2 : 0);
            if (!one)
                reached += runs.sweep(way, others, codes(sweep), std::chrono::seconds(60 / CURB_SHARE), fault::seed());
            const std::uint64_t calls = runs.calls(way, others);
            if (one_call && others == only_others && std::strcmp(argv[argc - 1], "blocks") != 0)
                runs.run({&way, {std::strtoull(argv[2], nullptr, 10), std::atoi(argv[3]), others, false}});
            std::vector<Trial> &trials = one || std::strcmp(way.name, "the_start") == 0 ? first : others_too;
            for (std::uint64_t call = 1; call <= calls; ++call)
                for (const int code : kCodes) trials.push_back({&way, {call, code, others, false}});
        }
    }
    std::vector<Trial> with_blocks;
    for (const Way &way : ways()) {
        if (one && std::strcmp(argv[1], way.name) != 0) continue;
        const std::uint64_t calls = runs.calls(way, false, true);
        if (one_call && std::strcmp(argv[argc - 1], "blocks") == 0)
            runs.run({&way, {std::strtoull(argv[2], nullptr, 10), std::atoi(argv[3]), false, false, true}});
        for (std::uint64_t call = 1; call <= calls; ++call)
            for (const int code : kCodes) with_blocks.push_back({&way, {call, code, false, false, true}});
    }
    if (one_call) return runs.failures() != 0;
    const std::uint64_t wanted = one ? 0 : matrix::figure(matrix::Name::driver_faults) / CURB_SHARE;
    reached += runs.run(first, first.size(), fault::seed());
    if (reached < wanted) reached += runs.run(others_too, wanted - reached, fault::seed());
    const std::uint64_t some = matrix::is_nightly() || one ? with_blocks.size() : 300 / CURB_SHARE;
    reached += runs.run(with_blocks, some, fault::seed());
    std::printf("%llu faults, %llu wrong\n", static_cast<unsigned long long>(reached),
                static_cast<unsigned long long>(runs.failures()));
    if (!one) matrix::report(matrix::Name::driver_faults, reached);
    return runs.failures() != 0 || reached < wanted;
}
