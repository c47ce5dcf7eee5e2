// Fills the cap with one family of memory (tests/families), frees it, and compares the books. FAMILY names the family.
#include "families.hpp"
#include "load/programs/books.hpp"
#include "memory.hpp"

using namespace scenario;
using families::Takes;

namespace {

constexpr std::uint64_t kEach = 33 * MiB + 5;

// Returns the bytes that the process holds of the device, by the driver's books. curb_sim_held is NVML's figure, which
// leaves managed memory out.
std::uint64_t in_use() { return curb_sim_held(0) + curb_sim_held_for(0, "managed"); }

void books_agree(const families::Family &family) {
    const std::string differences = load::differences_that_stay(std::chrono::seconds(2));
    if (!differences.empty()) std::fputs(differences.c_str(), stderr);
    EXPECT(differences.empty());
    // Measured memory counts as code, and curb then keeps less free for code.
    if (family.memory.takes != Takes::measured) EXPECT_EQ(shown_held(), in_use());
}

}  // namespace

SCENARIO_NAMED(a_family_of_memory_is_held_to_the_cap_and_comes_back) {
    start();
    const families::Family &family = *families::find(std::getenv("FAMILY"));
    families::Calls calls;
    const families::Place place = families::make_place(calls, 0);
    const families::Use use{calls, place, 1};
    std::vector<families::Block> blocks;
    const auto allocate = [&] {
        families::Block block{.bytes = family.nth(static_cast<unsigned>(blocks.size()), kEach)};
        const CUresult result = family.take(use, block);
        if (result == CUDA_SUCCESS) blocks.push_back(block);
        return result;
    };
    MUST(allocate());
    const std::uint64_t taken = families::taken(family, blocks.front().bytes);
    if (family.memory.takes != Takes::measured) EXPECT_EQ(in_use(), kContext + taken);
    // With BLOCKS curb makes large plain blocks, which are virtual memory to the driver.
    const bool is_curbs = family.memory.kind == "plain" && std::getenv("BLOCKS") != nullptr;
    const char *kind = is_curbs ? "vmm" : family.memory.kind.data();
    if (!family.memory.kind.empty() && taken != 0) EXPECT_EQ(curb_sim_held_for(0, kind), taken);
    books_agree(family);
    if (taken != 0) {
        fill(allocate);
        // Otherwise curb refused a request that fits. A graph may take one unit more than its nodes.
        const std::uint64_t next = families::taken(family, family.nth(static_cast<unsigned>(blocks.size()), kEach));
        const std::uint64_t unit = family.memory.kind == "graphs" ? 32 * MiB : 0;
        EXPECT(in_use() + next + unit + kept_for_driver(kCap, 0) > kCap);
        books_agree(family);
    }
    for (const families::Block &block : blocks) MUST(family.give(use, block));
    families::end_place(calls, place);
    // curb frees what pools and graphs keep before it refuses.
    if (family.memory.takes != Takes::measured) MUST(cuMemFree_v2(take(352 * MiB)));
    EXPECT_EQ(in_use(), curb_sim_held_for(0, "context"));
    books_agree(family);
}

// Run it under a cap of 1026 MiB. Less what is kept for code, that leaves room for whole granules and 1.75 MiB.
SCENARIO_NAMED(a_request_for_a_part_of_a_granule_needs_room_for_all_of_it) {
    start();
    const families::Family &family = *families::find(std::getenv("FAMILY"));
    families::Calls calls;
    const families::Place place = families::make_place(calls, 0, false);
    take(352 * MiB);
    CUdeviceptr last = 0;
    fill([&] { return cuMemAlloc_v2(&last, 2 * MiB); });
    MUST(cuMemFree_v2(last));
    const std::uint64_t before = in_use();
    families::Block block{.bytes = 5 * MiB / 2};  // it takes two granules, and there is room for 3.75 MiB
    EXPECT_EQ(family.take({calls, place, 1}, block), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(in_use(), before);
    take(2 * MiB);
}
