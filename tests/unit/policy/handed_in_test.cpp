#include "policy/handed_in.hpp"

#include "catch.hpp"
#include "policies.hpp"

namespace curb::policy {
namespace {

constexpr Bytes kTotal = 80 * GiB;

HandedIn read(std::initializer_list<std::pair<const char *, const char *>> variables) {
    HandedIn out;
    for (const auto &[name, text] : variables) {
        INFO(name << "=" << text);
        REQUIRE_FALSE(read_handed_in(name, text, out));
    }
    return out;
}

GpuTerms terms(HandedIn handed_in, Layer own = {}, int ordinal = 0, const Layer &ceiling = {}) {
    return terms_for(in_force(own, ceiling, {.cap = {}, .job = {}, .handed_in = std::move(handed_in)}), gpu(ordinal),
                     kTotal);
}

TEST_CASE("A variable that hands in a cap is known by its name") {
    for (const char *one : {"NVIDIA_GPU_MEMORY_LIMIT=1", "GPU_MEMORY_LIMIT=1", "CUDA_DEVICE_MEMORY_LIMIT=1g",
                            "CUDA_DEVICE_MEMORY_LIMIT_7=1g", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1G"})
        CHECK(hands_in_cap(one));
    for (const char *one : {"NVIDIA_GPU_MEMORY_REQUEST=1", "GPU_MEMORY_LIMITS=1", "GPU_MEMORY_LIMIT",
                            "CUDA_DEVICE_MEMORY_LIMI=1", "CURB_CAP=1GiB", "="})
        CHECK_FALSE(hands_in_cap(one));
}

TEST_CASE("The limits of other systems are read as those systems mean them") {
    const auto cap = [](const char *name, const char *text) { return terms(read({{name, text}})).cap; };
    CHECK(cap("NVIDIA_GPU_MEMORY_LIMIT", "8192") == 8 * GiB);
    CHECK(cap("GPU_MEMORY_LIMIT", "8589934592") == 8 * GiB);
    CHECK(cap("GPU_MEMORY_LIMIT", "8192") == 8 * GiB);
    for (const char *text : {"8g", "8G", "8192m", "8388608k", "8589934592", "8192", "8GiB", "8gb"})
        CHECK(cap("CUDA_DEVICE_MEMORY_LIMIT", text) == 8 * GiB);
    CHECK(cap("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=8G,1=2G") == 8 * GiB);
    CHECK_FALSE(cap("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "1=2G"));
    CHECK(terms(read({{"CUDA_DEVICE_MEMORY_LIMIT", "8g"}})).handed_in == "CUDA_DEVICE_MEMORY_LIMIT");
}

TEST_CASE("The lowest of the limits that name a device applies") {
    const HandedIn all = read({{"CUDA_DEVICE_MEMORY_LIMIT", "8g"},
                               {"CUDA_DEVICE_MEMORY_LIMIT_0", "4g"},
                               {"CUDA_DEVICE_MEMORY_LIMIT_1", "16g"}});
    CHECK(terms(all).cap == 4 * GiB);
    CHECK(terms(all).handed_in == "CUDA_DEVICE_MEMORY_LIMIT_0");
    CHECK(terms(all, {}, 1).cap == 8 * GiB);
    CHECK(terms(all, {}, 2).cap == 8 * GiB);
}

TEST_CASE("Limits of other systems apply only if curb's own policy does not cap the device") {
    const HandedIn all = read({{"GPU_MEMORY_LIMIT", "4294967296"}});
    CHECK(terms(all, layer_of("20GiB")).cap == 20 * GiB);
    CHECK(terms(all, layer_of("20GiB")).handed_in.empty());
    const Policy narrowed = in_force({}, {}, {.cap = {size("10GiB")}, .job = {}, .handed_in = all});
    CHECK(terms_for(narrowed, gpu(0), kTotal).cap == 10 * GiB);
    CHECK(terms_for(in_force({}, {}, {.cap = {}, .job = {}, .handed_in = all}), gpu(0), kTotal, size("6GiB")).cap ==
          6 * GiB);
    Layer ignores;
    ignores.environment = false;
    CHECK_FALSE(terms(all, ignores).cap);
    CHECK_FALSE(terms(all, {}, 0, ignores).cap);
    Layer takes;
    takes.environment = true;
    CHECK_FALSE(terms(all, takes, 0, ignores).cap);
}

TEST_CASE("The machine's ceiling applies beside limits of other systems") {
    const HandedIn all = read({{"GPU_MEMORY_LIMIT", "4294967296"}});
    CHECK(terms(all, {}, 0, layer_of("2GiB")).cap == 2 * GiB);
    CHECK(terms(all, {}, 0, layer_of("2GiB")).handed_in.empty());
    CHECK(terms(all, {}, 0, layer_of("6GiB")).cap == 4 * GiB);
    CHECK(terms(all, {}, 0, layer_of("6GiB")).handed_in == "GPU_MEMORY_LIMIT");
}

TEST_CASE("A request of another system is the start of the allowance") {
    const GpuTerms both = terms(read({{"NVIDIA_GPU_MEMORY_LIMIT", "8192"}, {"NVIDIA_GPU_MEMORY_REQUEST", "2048"}}));
    CHECK(both.cap == 8 * GiB);
    CHECK(both.growth.start == 2 * GiB);
    CHECK(both.growth.step == GiB);
    CHECK(terms(read({{"NVIDIA_GPU_MEMORY_REQUEST", "2048"}})).growth.start == 2 * GiB);
    // As much as the limit: nothing to grow to.
    CHECK_FALSE(terms(read({{"NVIDIA_GPU_MEMORY_LIMIT", "8192"}, {"NVIDIA_GPU_MEMORY_REQUEST", "8192"}})).growth.start);
    Layer own;
    own.gpu = {grown("*", {.start = "3GiB", .factor = 2})};
    const GpuTerms of_policy = terms(read({{"NVIDIA_GPU_MEMORY_REQUEST", "2048"}}), own);
    CHECK(of_policy.growth.start == 3 * GiB);
    CHECK(of_policy.growth.step == 0);
}

TEST_CASE("A text that is no limit is reported and ignored") {
    for (const auto &[name, text] : {std::pair("NVIDIA_GPU_MEMORY_LIMIT", "lots"),
                                     {"NVIDIA_GPU_MEMORY_LIMIT", "-1"},
                                     {"NVIDIA_GPU_MEMORY_LIMIT", "0"},
                                     {"GPU_MEMORY_LIMIT", "50%"},
                                     {"GPU_MEMORY_LIMIT", ""},
                                     {"CUDA_DEVICE_MEMORY_LIMIT_0", "8 g"},
                                     {"CUDA_DEVICE_MEMORY_LIMIT", "8gx"},
                                     {"CUDA_DEVICE_MEMORY_LIMIT", "99999999999999g"},
                                     {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "4G"},
                                     {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=4G,1"},
                                     {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "x=4G"}}) {
        HandedIn out;
        const auto fault = read_handed_in(name, text, out);
        INFO(name << "=" << text);
        REQUIRE(fault);
        CHECK(fault->starts_with(name + std::string(" is '")));
        CHECK(fault->ends_with("it is ignored"));
        CHECK(out == HandedIn());
    }
}

}  // namespace
}  // namespace curb::policy
