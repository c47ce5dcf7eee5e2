// What each family of memory (tests/families) has in common under a cap; FAMILY names one.
#include "families.hpp"
#include "load/books.hpp"
#include "memory.hpp"

using namespace scenario;
using families::Takes;

namespace {

constexpr std::uint64_t kEach = 33 * MiB + 5;

// What the process holds of the device, by the driver's books. NVML counts managed memory for no process.
std::uint64_t in_use() { return curb_sim_held(0) + curb_sim_held_for(0, "managed"); }

void books_agree(const families::Family &family) {
    const std::string differences = load::differences_that_stay(std::chrono::seconds(2));
    if (!differences.empty()) std::fputs(differences.c_str(), stderr);
    EXPECT(differences.empty());
    // What is measured counts as code, for which curb then keeps less free.
    if (family.memory.takes != Takes::measured) EXPECT_EQ(told_held(), in_use());
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
    if (!family.memory.kind.empty() && taken != 0) EXPECT_EQ(curb_sim_held_for(0, family.memory.kind.data()), taken);
    books_agree(family);
    if (taken != 0) {
        fill(allocate);
        // Or it was refused though there is room, which for a graph may be one unit more than for its nodes.
        const std::uint64_t next = families::taken(family, family.nth(static_cast<unsigned>(blocks.size()), kEach));
        const std::uint64_t unit = family.memory.kind == "graphs" ? 32 * MiB : 0;
        EXPECT(in_use() + next + unit + kept_for_driver(kCap, 0) > kCap);
        books_agree(family);
    }
    for (const families::Block &block : blocks) MUST(family.give(use, block));
    families::end_place(calls, place);
    // What pools and graphs keep is given back before anything is refused.
    if (family.memory.takes != Takes::measured) MUST(cuMemFree_v2(take(352 * MiB)));
    EXPECT_EQ(in_use(), curb_sim_held_for(0, "context"));
    books_agree(family);
}
