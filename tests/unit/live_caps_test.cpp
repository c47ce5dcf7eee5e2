#include "policy/live_caps.hpp"

#include "catch.hpp"

using namespace curb::policy;

namespace {

const std::vector<GpuIdentity> kGpus = {{0, 1, "0000:11:00.0", "GPU-c07b513d-0000-4000-8000-000000000001", ""},
                                        {1, 0, "0000:10:00.0", "GPU-c07b513d-0000-4000-8000-000000000000", ""}};

GpuKey key(const char *text) { return parse_gpu_key(text).value(); }
Size gib(Bytes amount) { return {Size::Unit::bytes, amount * GiB}; }

// Two devices and what was set for them.
struct Process {
    LiveCaps caps;
    std::vector<std::size_t> set(const char *gpu, std::optional<Size> cap) {
        const auto named = caps.set(key(gpu), cap, kGpus);
        REQUIRE(named);
        return *named;
    }
    std::string refusal(const char *gpu) {
        const auto named = caps.set(key(gpu), gib(1), kGpus);
        REQUIRE_FALSE(named);
        return named.error();
    }
    [[nodiscard]] std::optional<Size> of(std::size_t gpu) const { return caps.of(gpu, kGpus[gpu]); }
};

}  // namespace

TEST_CASE("A cap is set for the devices that its key names") {
    Process process;
    CHECK(!process.of(0));
    CHECK(process.set("*", gib(8)) == std::vector<std::size_t>{0, 1});
    CHECK(process.of(0) == gib(8));
    CHECK(process.of(1) == gib(8));
    CHECK(process.set("nvml:0", gib(2)) == std::vector<std::size_t>{1});
    CHECK(process.of(0) == gib(8));
    CHECK(process.of(1) == gib(2));
}

TEST_CASE("Several keys add up, and the most specific one wins whenever it was set") {
    Process process;
    process.set("GPU-c07b513d-0000-4000-8000-000000000001", gib(4));
    process.set("*", gib(8));
    process.set("cuda:0", gib(6));
    CHECK(process.of(0) == gib(4));
    CHECK(process.of(1) == gib(8));
}

TEST_CASE("The same key again replaces what it had set") {
    Process process;
    process.set("cuda:0", gib(8));
    process.set("cuda:0", gib(2));
    process.set("cuda:0", gib(6));
    CHECK(process.of(0) == gib(6));
}

TEST_CASE("Taken away for a device, nothing is set for it by any key") {
    Process process;
    process.set("*", gib(8));
    process.set("GPU-c07b513d-0000-4000-8000-000000000001", gib(4));
    process.set("cuda:0", std::nullopt);
    CHECK(!process.of(0));
    CHECK(process.of(1) == gib(8));
    process.set("*", std::nullopt);
    CHECK(!process.of(1));
}

TEST_CASE("A key that names no device, or it is not clear which, is refused with the devices that there are") {
    Process process;
    process.set("*", gib(8));
    CHECK_THAT(process.refusal("cuda:2"),
               contains(R"(gpu key "cuda:2" names none of this process's GPUs (cuda:0 = )") &&
                   contains("nvml:1, 0000:11:00.0, GPU-c07b513d-0000-4000-8000-000000000001"));
    CHECK_THAT(process.refusal("GPU-c07b513d"), contains("is the beginning of several UUIDs"));
    CHECK(process.of(0) == gib(8));
    LiveCaps none;
    CHECK(none.set(key("*"), gib(1), {}).error() == "this process sees no GPU");
}

TEST_CASE("A live cap stands in the place of the policy's and of CURB_CAP, higher or lower, within the ceiling") {
    Policy policy;
    policy.gpu = {{key("*"), {}}};
    policy.gpu[0].policy.cap = gib(8);
    policy.narrowed_to = gib(6);
    const auto terms = [&](std::optional<Size> live) { return terms_for(policy, kGpus[0], 80 * GiB, live); };
    CHECK(terms({}).cap == 6 * GiB);
    CHECK(terms(gib(4)).cap == 4 * GiB);
    CHECK(terms(gib(20)).cap == 20 * GiB);
    CHECK(terms(Size{Size::Unit::basis_points, 5000}).cap == 40 * GiB);
    CHECK(!terms(gib(20)).ceiling);

    policy.ceiling = {{key("*"), {}}};
    policy.ceiling[0].policy.cap = gib(10);
    CHECK(terms(gib(20)).cap == 10 * GiB);
    CHECK(terms(gib(20)).ceiling);
    CHECK(terms(gib(10)).cap == 10 * GiB);
    CHECK(!terms(gib(10)).ceiling);
    CHECK(!terms({}).ceiling);
    policy.gpu.clear();
    policy.narrowed_to.reset();
    CHECK(terms({}).cap == 10 * GiB);
    CHECK(terms({}).ceiling);
}
