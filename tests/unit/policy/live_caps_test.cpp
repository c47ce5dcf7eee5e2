#include "policy/live_caps.hpp"

#include "catch.hpp"
#include "policies.hpp"

using namespace curb::policy;

namespace {

const std::vector<GpuIdentity> kGpus = {{0, 1, "0000:11:00.0", "GPU-c07b513d-0000-4000-8000-000000000001", ""},
                                        {1, 0, "0000:10:00.0", "GPU-c07b513d-0000-4000-8000-000000000000", ""}};

// A process with two devices, and their live caps.
struct Process {
    LiveCaps caps;
    std::vector<std::size_t> set(const char *gpu, std::optional<Size> cap) {
        const auto named = caps.set(key(gpu), cap, kGpus);
        REQUIRE(named);
        return *named;
    }
    std::string refusal(const char *gpu) {
        const auto named = caps.set(key(gpu), size("1GiB"), kGpus);
        REQUIRE_FALSE(named);
        return named.error();
    }
    [[nodiscard]] std::optional<Size> of(std::size_t gpu) const { return caps.of(gpu, kGpus[gpu]); }
};

}  // namespace

TEST_CASE("A live cap is set and replaced by its key; the most specific key wins, whenever it was set") {
    Process process;
    CHECK(!process.of(0));
    CHECK(process.set("*", size("8GiB")) == std::vector<std::size_t>{0, 1});
    CHECK(process.set("nvml:0", size("2GiB")) == std::vector<std::size_t>{1});
    CHECK(process.of(0) == size("8GiB"));
    CHECK(process.of(1) == size("2GiB"));
    process.set("GPU-c07b513d-0000-4000-8000-000000000001", size("4GiB"));
    process.set("cuda:0", size("6GiB"));
    process.set("*", size("1GiB"));
    CHECK(process.of(0) == size("4GiB"));
    CHECK(process.of(1) == size("2GiB"));
    process.set("nvml:0", size("3GiB"));
    CHECK(process.of(1) == size("3GiB"));
    process.set("cuda:0", std::nullopt);  // removes the caps of every key that names it
    CHECK(!process.of(0));
    CHECK(process.of(1) == size("3GiB"));
    process.set("*", std::nullopt);
    CHECK(!process.of(1));
}

TEST_CASE("A key that names no device, or an ambiguous one, is refused; the error lists the devices") {
    Process process;
    process.set("*", size("8GiB"));
    CHECK_THAT(process.refusal("cuda:2"),
               contains(R"(gpu key "cuda:2" names none of this process's GPUs (cuda:0 = )") &&
                   contains("nvml:1, 0000:11:00.0, GPU-c07b513d-0000-4000-8000-000000000001"));
    CHECK_THAT(process.refusal("GPU-c07b513d"), contains("is the beginning of several UUIDs"));
    CHECK(process.of(0) == size("8GiB"));
    LiveCaps none;
    CHECK(none.set(key("*"), size("1GiB"), {}).error() == "this process sees no GPU");
}

TEST_CASE("A live cap replaces the policy's cap and CURB_CAP, higher or lower, within the ceiling") {
    Policy policy;
    policy.gpu = {capped("*", "8GiB")};
    policy.narrowed_to = {size("6GiB")};
    struct Row {
        const char *live;
        Bytes cap, below;  // in force, and under a ceiling of 10 GiB
        bool is_ceiling;
    };
    for (const auto &[live, cap, below, is_ceiling] :
         {Row{"", 6 * GiB, 6 * GiB, false}, Row{"4GiB", 4 * GiB, 4 * GiB, false},
          Row{"10GiB", 10 * GiB, 10 * GiB, false}, Row{"20GiB", 20 * GiB, 10 * GiB, true},
          Row{"50%", 40 * GiB, 10 * GiB, true}}) {
        CAPTURE(live);
        const auto live_cap = *live ? std::optional(size(live)) : std::nullopt;
        policy.ceiling.clear();
        CHECK(terms_for(policy, kGpus[0], 80 * GiB, live_cap).cap == cap);
        CHECK(!terms_for(policy, kGpus[0], 80 * GiB, live_cap).ceiling);
        policy.ceiling = {capped("*", "10GiB")};
        CHECK(terms_for(policy, kGpus[0], 80 * GiB, live_cap).cap == below);
        CHECK(terms_for(policy, kGpus[0], 80 * GiB, live_cap).ceiling == is_ceiling);
    }
    policy.gpu.clear();
    policy.narrowed_to.clear();
    CHECK(terms_for(policy, kGpus[0], 80 * GiB).cap == 10 * GiB);
    CHECK(terms_for(policy, kGpus[0], 80 * GiB).ceiling);
}
