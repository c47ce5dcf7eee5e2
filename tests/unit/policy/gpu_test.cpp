// Which GPUs the keys of a policy name, and the terms of each.
#include <array>
#include <random>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "policies.hpp"
#include "policy/policy.hpp"

using namespace curb::policy;
using namespace std::chrono_literals;

namespace {

Policy with(std::vector<GpuRule> rules) {
    Policy policy;
    policy.gpu = std::move(rules);
    return policy;
}

// The process sees two GPUs, which CUDA numbers in the reverse order of NVML. The names are spelt as by CUDA and NVML.
const GpuIdentity kFirst{0, 3, "0000:3B:00.0", "GPU-8f3a1b2c-0d4e-5f60-7182-93a4b5c6d7e8", ""};
const GpuIdentity kSecond{1, 2, "00000000:AF:00.0", "GPU-8f3a77aa-0d4e-5f60-7182-93a4b5c6d7e8", ""};
const std::vector<GpuIdentity> kBoth{kFirst, kSecond};
// Two MIG instances of one GPU.
const GpuIdentity kInstance{0, 1, "0000:3B:00.0", "GPU-8f3a1b2c-0d4e-5f60-7182-93a4b5c6d7e8",
                            "MIG-c1d20000-0d4e-5f60-7182-93a4b5c6d7e8"};
const GpuIdentity kSibling{1, 1, "0000:3B:00.0", "GPU-8f3a1b2c-0d4e-5f60-7182-93a4b5c6d7e8",
                           "MIG-c1d2ffff-0d4e-5f60-7182-93a4b5c6d7e8"};

const std::string kNames =
    "cuda:0 = nvml:3, 0000:3b:00.0, GPU-8f3a1b2c-0d4e-5f60-7182-93a4b5c6d7e8; "
    "cuda:1 = nvml:2, 0000:af:00.0, GPU-8f3a77aa-0d4e-5f60-7182-93a4b5c6d7e8";

std::optional<Bytes> cap(const Policy &policy, const GpuIdentity &gpu) { return terms_for(policy, gpu, 80 * GiB).cap; }

}  // namespace

// ---- how keys are written ----

TEST_CASE("A key is always written in the same spelling, and parses back from it") {
    const auto [text, written] = GENERATE(table<const char *, const char *>({
        {"*", "*"},
        {"cuda:0", "cuda:0"},
        {"cuda:15", "cuda:15"},
        {"nvml:3", "nvml:3"},
        {"00000000:3B:00.0", "0000:3b:00.0"},  // nvidia-smi
        {"0000:3B:00.0", "0000:3b:00.0"},      // cuDeviceGetPCIBusId
        {"0000:3b:00.0", "0000:3b:00.0"},      // lspci -D
        {"3b:00.0", "0000:3b:00.0"},           // lspci
        {"10000:01:1F.7", "10000:01:1f.7"},
        {"FFFFFFFF:ff:1f.7", "ffffffff:ff:1f.7"},
        {"GPU-8f3a1b2c-0d4e-5f60-7182-93a4b5c6d7e8", "GPU-8f3a1b2c-0d4e-5f60-7182-93a4b5c6d7e8"},
        {"GPU-8F3A1B2C-0D4E-5F60-7182-93A4B5C6D7E8", "GPU-8f3a1b2c-0d4e-5f60-7182-93a4b5c6d7e8"},
        {"GPU-8", "GPU-8"},
        {"GPU-8f3a1b2c", "GPU-8f3a1b2c"},
        {"GPU-8f3a1b2c-", "GPU-8f3a1b2c"},
        {"MIG-C1d2", "MIG-c1d2"},
    }));
    CHECK(gpu_key_text(key(text)) == written);
    CHECK(key(written) == key(text));
    for (const char *other : {"cuda:1", "nvml:0", "GPU-8f", "MIG-8f", "0001:00:00.0"})
        CHECK_FALSE(key(other) == key(text));
}

TEST_CASE("The error for a misspelt key suggests the right one") {
    const std::vector<std::pair<const char *, const char *>> rows = {
        {"cuda:00", "cuda:0"},
        {"CUDA:1", "cuda:1"},
        {"cuda0", "cuda:0"},
        {"cuda: 1", "cuda:1"},
        {"cuda:1 ", "cuda:1"},
        {"gpu:0", "cuda:0"},
        {"GPU0", "cuda:0"},
        {"gpu-0", "cuda:0"},
        {"device:2", "cuda:2"},
        {"3", "cuda:3"},
        {"NVML:01", "nvml:1"},
        {"nvml1", "nvml:1"},
        {"nvlm:1", "nvml:1"},
        {"all", "*"},
        {"gpu-8f3a", "GPU-8f3a"},
        {"GPU:8f3a", "GPU-8f3a"},
        {"GPU-8f3a ", "GPU-8f3a"},
        {"gpu-123", "GPU-123"},
        {"Mig-8F3a", "MIG-8f3a"},
        {"GPU-8f3a1b2c0d4e", "GPU-8f3a1b2c-0d4e"},
        {"GPU--8f3a", "GPU-8f3a"},
        {"8f3a1b2c-0d4e-5f60-7182-93a4b5c6d7e8", "GPU-8f3a1b2c-0d4e-5f60-7182-93a4b5c6d7e8"},
        {"3b:00", "0000:3b:00.0"},
        {"0000:3b:00:0", "0000:3b:00.0"},
        {"pci:0000:3b:00.0", "0000:3b:00.0"},
        {"PCI-3b:00.0", "0000:3b:00.0"},
    };
    for (const auto &[text, meant] : rows) {
        CHECK(error_of(parse_gpu_key(text)) ==
              std::string("\"") + text + "\" is not a device; did you mean \"" + meant + "\"?");
        CHECK(gpu_key_text(key(meant)) == meant);
    }
}

TEST_CASE("The error for a text near no key lists the forms of a key") {
    const auto text =
        GENERATE(as<std::string>{}, "", "**", "cuda:", "cuda:-1", "cuda:x", "cuda:99999999999", "cuda:0,1", "nvml:-1",
                 "nvml:GPU-8f", "GPU", "mig:", "8f3a", "0000:3b:20.0", "0000:3b:00.8", "0000:100:00.0",
                 "123456789:3b:00.0", ":3b:00.0", "0000:3b:00.", ".0", "0x3b:00.0", "\xC3\xA4", "NVIDIA H200");
    for (const char *form :
         {"is not a device", "\"*\"", "\"cuda:0\"", "\"nvml:0\"", "\"GPU-8f3a\"", "\"0000:3b:00.0\""})
        CHECK_THAT(error_of(parse_gpu_key(text)), contains(form));
}

TEST_CASE("The error for a wrong UUID says what is wrong with it") {
    const std::vector<std::pair<std::string, std::string>> rows = {
        {"GPU-", "\"GPU-\" is what every UUID begins with; write more of it, as nvidia-smi -L prints it"},
        {"GPU--", "\"GPU--\" is what every UUID begins with"},
        {"GPU-8g3a",
         "\"GPU-8g3a\" is neither a UUID nor its beginning: after \"GPU-8\" a hexadecimal digit is expected"},
        {"GPU-8f\xC3\xA4", "after \"GPU-8f\" a hexadecimal digit is expected"},
        {"GPU-8f3a1b2c-0d4e-5f60-7182-93a4b5c6d7e80", "longer than a UUID, which has 32 digits"},
        {"MIG-GPU-8f3a1b2c-0d4e-5f60-7182-93a4b5c6d7e8/7/0", "how drivers before 470 named MIG instances"},
    };
    for (const auto &[text, wrong] : rows) CHECK_THAT(error_of(parse_gpu_key(text)), contains(wrong));
}

TEST_CASE("Every key that is accepted or suggested parses back from its one spelling") {
    const std::vector<std::string> parts{"*", "cuda", "nvml", "GPU", "MIG",      "pci",  ":", "-", ".",
                                         " ", "0",    "00",   "3B",  "8f3a1b2c", "0d4e", "1", "g", "\xC3"};
    const std::string asks = "did you mean \"";
    std::mt19937 random(1);
    int taken = 0, suggested = 0;
    for (int round = 0; round < 100'000; ++round) {
        std::string text;
        for (auto n = 1 + random() % 8; n > 0; --n) text += parts[random() % parts.size()];
        auto parsed = parse_gpu_key(text);
        if (parsed) {
            ++taken;
        } else {
            const std::size_t at = parsed.error().rfind(asks);
            if (at == std::string::npos) continue;
            ++suggested;
            const std::size_t begin = at + asks.size();
            parsed = parse_gpu_key(parsed.error().substr(begin, parsed.error().rfind('"') - begin));
        }
        if (parsed && *parse_gpu_key(gpu_key_text(*parsed)) == *parsed) continue;  // Catch2's assertions are slow
        INFO(text);
        FAIL("a key that is none");
    }
    CHECK(taken > 100);
    CHECK(suggested > 100);
}

// ---- which GPUs they name ----

TEST_CASE("A GPU's key names it and all its instances; an instance's key names that instance alone") {
    const GpuIdentity unknown{0, {}, "", "", ""};
    struct Row {
        const char *key;
        bool first, second, instance, sibling, unknown;
    };
    for (const Row &row : {
             Row{"*", true, true, true, true, true},
             Row{"cuda:0", true, false, true, false, true},
             Row{"cuda:2", false, false, false, false, false},
             Row{"nvml:3", true, false, false, false, false},
             Row{"nvml:1", false, false, true, true, false},
             Row{"nvml:0", false, false, false, false, false},
             Row{"3B:00.0", true, false, true, true, false},
             Row{"0001:3b:00.0", false, false, false, false, false},
             Row{"3b:00.1", false, false, false, false, false},
             Row{"0000:00:00.0", false, false, false, false, false},
             Row{"GPU-8f3a", true, true, true, true, false},
             Row{"GPU-8F3A1B2C-0d4e-5f60-7182-93a4b5c6d7e8", true, false, true, true, false},
             Row{"GPU-8f3a2", false, false, false, false, false},
             Row{"GPU-c1d20", false, false, false, false, false},
             Row{"MIG-8f3a1", false, false, false, false, false},
             Row{"MIG-c1d20", false, false, true, false, false},
         }) {
        INFO(row.key);
        CHECK(names(key(row.key), kFirst) == row.first);
        CHECK(names(key(row.key), kSecond) == row.second);
        CHECK(names(key(row.key), kInstance) == row.instance);
        CHECK(names(key(row.key), kSibling) == row.sibling);
        CHECK(names(key(row.key), unknown) == row.unknown);
    }
}

// ---- the terms of a GPU ----

TEST_CASE("Without a policy there is no cap and no growth, and programs see the cap as the total") {
    const GpuTerms none = terms_for(Policy{}, kFirst, 80 * GiB);
    CHECK(none == GpuTerms{.cap = {}, .growth = Growth{}, .fields = none.fields});
    CHECK(none.fields.report == Report::cap);
    CHECK(gpu_policy_for({}, kFirst) == GpuPolicy{});
}

TEST_CASE("The most specific key that names a GPU wins, in any order") {
    const std::vector<GpuRule> from_least{
        capped("*", "1GiB"),     capped("cuda:0", "2GiB"),  capped("nvml:1", "3GiB"), capped("3b:00.0", "4GiB"),
        capped("GPU-8", "5GiB"), capped("GPU-8f3", "6GiB"), capped("MIG-c", "7GiB"),  capped("MIG-c1", "8GiB")};
    for (std::size_t less = 0; less < from_least.size(); ++less) {
        for (std::size_t more = less + 1; more < from_least.size(); ++more) {
            INFO(gpu_key_text(from_least[less].key) << " and " << gpu_key_text(from_least[more].key));
            CHECK(cap(with({from_least[less], from_least[more]}), kInstance) == (more + 1) * GiB);
            CHECK(cap(with({from_least[more], from_least[less]}), kInstance) == (more + 1) * GiB);
        }
    }
    CHECK(cap(with(from_least), kInstance) == 8 * GiB);
    CHECK(cap(with({from_least.rbegin(), from_least.rend()}), kInstance) == 8 * GiB);
    // Of equal keys the later wins.
    CHECK(cap(with({capped("cuda:0", "2GiB"), capped("cuda:0", "1GiB")}), kFirst) == 1 * GiB);
    CHECK(cap(with({capped("cuda:0", "1GiB"), capped("cuda:0", "2GiB")}), kFirst) == 2 * GiB);
}

TEST_CASE("Keys of a device are laid over each other field by field, and percentages become bytes of the device") {
    const Policy policy = with({reported("GPU-8f3a1", Report::device), capped("cuda:0", "60GiB"), capped("*", "8GiB")});
    const GpuTerms first = terms_for(policy, kFirst, 80 * GiB), second = terms_for(policy, kSecond, 80 * GiB);
    CHECK(first == GpuTerms{.cap = 60 * GiB, .growth = Growth{}, .fields = first.fields});
    CHECK(second == GpuTerms{.cap = 8 * GiB, .growth = Growth{}, .fields = second.fields});
    CHECK(first.fields.report == Report::device);
    CHECK(second.fields.report == Report::cap);
    const Policy back = with({reported("*", Report::device), reported("nvml:3", Report::cap)});
    CHECK(terms_for(back, kFirst, 80 * GiB).fields.report == Report::cap);
    CHECK(terms_for(back, kSecond, 80 * GiB).fields.report == Report::device);
}

TEST_CASE("All keys of a device together make its growth, in its bytes") {
    const Policy policy =
        with({grown("*", {.step = "1GiB", .every = 10s}), grown("cuda:0", {.start = "25%", .wait = 5s}),
              grown("GPU-8f3a1", {.factor = 1.5, .keep_free = "10%"})});
    CHECK(terms_for(policy, kFirst, 80 * GiB).growth ==
          Growth{.start = 20 * GiB, .step = 0, .factor = 1.5, .every = 10s, .keep_free = 8 * GiB, .wait = 5s});
    CHECK(terms_for(policy, kSecond, 80 * GiB).growth == Growth{.step = 1 * GiB, .every = 10s});
}

TEST_CASE("All keys together make the cache, and the ceiling narrows it like a cap; without a size there is none") {
    const auto cached = [](const char *of, const char *max, std::optional<Duration> idle) {
        GpuRule rule{key(of), {}};
        rule.policy.cache = {.max = *max ? std::optional(size(max)) : std::nullopt, .idle = idle};
        return rule;
    };
    const auto cache_of = [](const Policy &policy, const GpuIdentity &gpu) {
        return terms_for(policy, gpu, 80 * GiB).cache;
    };
    Policy policy = with({cached("*", "10%", 5s), cached("cuda:0", "1GiB", {})});
    CHECK(cache_of(policy, kFirst) == Cache{.max = 1 * GiB, .idle = 5s});
    CHECK(cache_of(policy, kSecond) == Cache{.max = 8 * GiB, .idle = 5s});
    policy.ceiling = {cached("*", "64MiB", 60s)};
    CHECK(cache_of(policy, kFirst) == Cache{.max = 64 * MiB, .idle = 5s});
    CHECK(cache_of(with({cached("*", "1GiB", {})}), kFirst) == Cache{.max = 1 * GiB, .idle = 30s});
    CHECK(cache_of(with({cached("*", "", 5s)}), kFirst) == Cache{});
}

TEST_CASE("A cap from outside the files narrows the cap of policy and ceiling, and never widens it") {
    const auto narrowed = [](Policy policy, std::vector<const char *> to, const GpuIdentity &gpu, Bytes total) {
        for (const char *text : to) policy.narrowed_to.push_back(size(text));
        return terms_for(policy, gpu, total).cap;
    };
    const Policy own = with({capped("*", "20GiB"), capped("GPU-8f3a7", "1GiB")});
    CHECK(narrowed({}, {"8GiB"}, kFirst, 80 * GiB) == 8 * GiB);
    CHECK(narrowed({}, {"0B"}, kFirst, 80 * GiB) == Bytes{0});
    CHECK(narrowed(own, {"8GiB"}, kFirst, 80 * GiB) == 8 * GiB);
    CHECK(narrowed(own, {"8GiB"}, kSecond, 80 * GiB) == 1 * GiB);
    CHECK(narrowed(own, {"50%"}, kFirst, 30 * GiB) == 15 * GiB);
    CHECK(narrowed(own, {"50%", "8GiB"}, kFirst, 30 * GiB) == 8 * GiB);  // the lowest on the device
    CHECK(narrowed(own, {"50%", "8GiB"}, kFirst, 12 * GiB) == 6 * GiB);
    Policy bounded = own;
    bounded.ceiling = {capped("*", "10GiB")};
    CHECK(narrowed(bounded, {"15GiB"}, kFirst, 80 * GiB) == 10 * GiB);
    CHECK(narrowed(bounded, {"5GiB"}, kFirst, 80 * GiB) == 5 * GiB);
    bounded.gpu.clear();
    CHECK(narrowed(bounded, {"30GiB"}, kFirst, 80 * GiB) == 10 * GiB);
    // Growth and report stay as they are.
    Policy growing = with({grown("*", {.start = "2GiB", .step = "1GiB"}), reported("cuda:0", Report::device)});
    const GpuTerms before = terms_for(growing, kFirst, 80 * GiB);
    growing.narrowed_to = {size("1GiB")};
    const GpuTerms after = terms_for(growing, kFirst, 80 * GiB);
    CHECK(after == GpuTerms{.cap = 1 * GiB, .growth = before.growth, .fields = after.fields, .narrowed = true});
    CHECK(after.fields.report == Report::device);
}

TEST_CASE("NVML's index is needed only if a key uses it") {
    CHECK_FALSE(needs_nvml_index(with({capped("*", "8GiB"), capped("cuda:0", "8GiB"), capped("GPU-8f", "8GiB")})));
    CHECK(needs_nvml_index(with({capped("*", "8GiB"), capped("nvml:0", "8GiB")})));
    Policy policy;
    policy.ceiling = {capped("nvml:0", "8GiB")};
    CHECK(needs_nvml_index(policy));
    Policy handed_in;
    handed_in.handed_in.caps = {{CapFor(size("4GiB"), key("nvml:0")), "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"}};
    CHECK(needs_nvml_index(handed_in));
}

// ---- within the machine's ceiling ----

TEST_CASE("The narrower value of the user's policy and the ceiling applies, field by field") {
    struct Row {
        const char *what;
        GpuPolicy low;
        GpuPolicy high;
        enum { lower, higher, own } holds;
    };
    const auto rows = std::to_array<Row>({
        {"cap", cap_of("8GiB"), cap_of("20GiB"), Row::lower},
        {"start", growth_of({.start = "2GiB"}), growth_of({.start = "3GiB"}), Row::lower},
        {"step", growth_of({.step = "1GiB"}), growth_of({.step = "2GiB"}), Row::lower},
        {"factor", growth_of({.factor = 1.5}), growth_of({.factor = 2}), Row::lower},
        {"every", growth_of({.every = 1s}), growth_of({.every = 1min}), Row::higher},
        {"keep_free", growth_of({.keep_free = "1GiB"}), growth_of({.keep_free = "2GiB"}), Row::higher},
        {"wait", growth_of({.wait = 1s}), growth_of({.wait = 1min}), Row::own},
        {"report", report_of(Report::cap), report_of(Report::device), Row::own},
    });
    const auto terms = [](const std::optional<GpuPolicy> &own, const std::optional<GpuPolicy> &ceiling) {
        Policy policy;
        if (own) policy.gpu = {{key("*"), *own}};
        if (ceiling) policy.ceiling = {{key("cuda:0"), *ceiling}};
        GpuTerms out = terms_for(policy, kFirst, 80 * GiB);
        out.ceiling = false;  // compare the values, not where they come from
        return out;
    };
    for (const Row &row : rows) {
        INFO(row.what);
        const GpuTerms low = terms(row.low, {}), high = terms(row.high, {});
        CHECK_FALSE(low == high);
        CHECK(terms(row.low, row.low) == low);
        CHECK(terms(row.low, row.high) == (row.holds == Row::higher ? high : low));
        CHECK(terms(row.high, row.low) == (row.holds == Row::lower ? low : high));
        CHECK(terms({}, row.low) == low);  // the ceiling fills in what is left out
        CHECK(terms({}, row.high) == high);
    }
}

TEST_CASE("A percentage and an amount are compared in the bytes of the device") {
    Policy caps = with({capped("*", "50%")}), free = with({grown("*", {.keep_free = "10%"})});
    caps.ceiling = {capped("*", "20GiB")};
    free.ceiling = {grown("*", {.keep_free = "4GiB"})};
    for (int way = 0; way < 2; ++way) {
        CHECK(terms_for(caps, kFirst, 80 * GiB).cap == 20 * GiB);
        CHECK(terms_for(caps, kFirst, 30 * GiB).cap == 15 * GiB);
        CHECK(terms_for(free, kFirst, 80 * GiB).growth.keep_free == 8 * GiB);
        CHECK(terms_for(free, kFirst, 20 * GiB).growth.keep_free == 4 * GiB);
        std::swap(caps.gpu, caps.ceiling);
        std::swap(free.gpu, free.ceiling);
    }
}

TEST_CASE("A step in one and a factor in the other: the one that grows less applies") {
    Policy policy;
    policy.gpu = {grown("*", {.start = "1GiB", .step = "1GiB"})};
    policy.ceiling = {grown("*", {.start = "1GiB", .factor = 1.5})};
    for (int way = 0; way < 2; ++way) {
        const Growth growth = terms_for(policy, kFirst, 80 * GiB).growth;
        CHECK(growth == Growth{.start = 1 * GiB, .step = 1 * GiB, .factor = 1.5});
        CHECK(after_step(growth, 1 * GiB) == 1536 * MiB);
        CHECK(after_step(growth, 4 * GiB) == 5 * GiB);
        std::swap(policy.gpu, policy.ceiling);
    }
}

TEST_CASE("The ceiling of a device comes from the ceiling's keys, whatever keys the user wrote") {
    Policy policy = with({capped("GPU-8f3a1", "60GiB"), capped("*", "1GiB")});
    policy.ceiling = {capped("cuda:0", "30GiB"), capped("*", "10GiB")};
    CHECK(cap(policy, kFirst) == 30 * GiB);
    CHECK(cap(policy, kSecond) == 1 * GiB);
}

// ---- keys matched with all devices ----

TEST_CASE("A key that names no GPU is reported with the GPUs that there are") {
    for (const std::string text : {"cuda:2", "nvml:0", "0000:01:00.0", "GPU-9", "MIG-8f3a"}) {
        const std::vector<GpuRule> rules{capped("*", "8GiB"), capped("cuda:1", "4GiB"), capped(text, "4GiB")};
        const Matched matched = match(rules, kBoth);
        CHECK(matched.rules == rules);
        CHECK(matched.ambiguous.empty());
        CHECK(matched.unmatched ==
              std::vector{"gpu key \"" + text + "\" names none of this process's GPUs (" + kNames + ")"});
    }
    CHECK(match(std::vector{capped("*", "8GiB"), capped("cuda:0", "4GiB")}, {}).unmatched ==
          std::vector<std::string>{"gpu key \"cuda:0\" names none of this process's GPUs"});
    const std::vector<GpuIdentity> without_nvml{{0, {}, "", "", ""}};
    CHECK(match(std::vector{capped("nvml:0", "4GiB"), capped("cuda:1", "4GiB")}, without_nvml).unmatched ==
          std::vector<std::string>{
              "gpu key \"nvml:0\" names none of this process's GPUs (cuda:0); NVML does not report their indexes here",
              "gpu key \"cuda:1\" names none of this process's GPUs (cuda:0)"});
}

TEST_CASE("A prefix of several UUIDs is reported with them, and its rule is not applied") {
    const Matched matched =
        match(std::vector{capped("*", "8GiB"), capped("GPU-8f3a", "4GiB"), capped("GPU-8f3a7", "2GiB")}, kBoth);
    CHECK(matched.unmatched.empty());
    CHECK(matched.ambiguous == std::vector{"gpu key \"GPU-8f3a\" is the beginning of several UUIDs (" + kNames +
                                           "), so its rule is not applied; write more of the one that is meant"});
    CHECK(cap(with(matched.rules), kFirst) == 8 * GiB);
    CHECK(cap(with(matched.rules), kSecond) == 2 * GiB);
}

TEST_CASE("A GPU's UUID is not ambiguous if it has several instances; a prefix of the instances' UUIDs is") {
    const Matched matched =
        match(std::vector{capped("GPU-8f", "4GiB"), capped("MIG-c1d2", "2GiB")}, std::vector{kInstance, kSibling});
    REQUIRE(matched.ambiguous.size() == 1);
    CHECK_THAT(matched.ambiguous[0],
               contains("\"MIG-c1d2\"") && contains(kInstance.mig_uuid) && contains(kSibling.mig_uuid));
    CHECK(cap(with(matched.rules), kInstance) == 4 * GiB);
    CHECK(cap(with(matched.rules), kSibling) == 4 * GiB);
}
