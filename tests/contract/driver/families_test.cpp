// Checks the table of families (tests/families) against the driver: the device loses what the row of a block says, and
// gets it back.
#include "families.hpp"

#include "contract.hpp"

using namespace contract;

TEST_CASE("a block of each family takes of the device what its row says, and gives it back") {
    for (const families::Family &family : families::families()) {
        if (family.memory.trait == families::Trait::open_capture) continue;
        CAPTURE(family.name);
        const Gpu gpu;
        families::Calls calls;
        const families::Place place = families::make_place(calls, 0);
        const families::Use use{calls, place, 1};
        families::Block block{.bytes = 20 * kMiB};
        REQUIRE(family.take(use, block) == CUDA_SUCCESS);
        // NVML counts managed memory for no process.
        const bool counted = family.memory.trait != families::Trait::managed;
        if (family.memory.takes == families::Takes::measured)
            CHECK(gpu.taken() > 0);
        else
            CHECK(gpu.took(counted ? static_cast<int64_t>(families::taken(family, block.bytes)) : 0));
        REQUIRE(family.give(use, block) == CUDA_SUCCESS);
        families::end_place(calls, place);
        CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
        CHECK(cuDeviceGraphMemTrim(0) == CUDA_SUCCESS);
        CHECK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 1024) == CUDA_SUCCESS);
        // Part of a green context stays with the primary one, and some code of the first module.
        if (family.memory.takes != families::Takes::measured) CHECK(gpu.took(0));
    }
}
