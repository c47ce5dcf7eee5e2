#include "policy/flags.hpp"

#include "catch.hpp"
#include "policies.hpp"

namespace curb::policy {
namespace {

std::optional<Bytes> lowest(const char *list, int ordinal, Bytes total) {
    return lowest_on(parse_caps(list).value(), gpu(ordinal), total);
}

// Returns the layer with the flags laid over it.
Layer laid(Layer under, std::initializer_list<std::pair<Flag, const char *>> flags) {
    Flags over;
    for (const auto &[flag, text] : flags) {
        INFO(text);
        REQUIRE_FALSE(read_flag(flag, text, over));
    }
    lay_over(under, over);
    return under;
}

TEST_CASE("A list of caps keeps the lowest of each key and unit; the lowest of these applies to a device") {
    const auto text_of = [](const char *list) { return format(parse_caps(list).value()); };
    CHECK(text_of("8GiB") == "8GiB");
    CHECK(text_of("25%,6GiB") == "25%,6GiB");
    CHECK(text_of("8GiB,2GiB,4GiB") == "2GiB");
    CHECK(text_of("50%,6GiB,25%,8GiB") == "25%,6GiB");
    CHECK(text_of("cuda:1=4GiB,8GiB,cuda:1=2GiB,*=16GiB") == "cuda:1=2GiB,8GiB");
    CHECK(text_of("4GiB,cuda:1=8GiB,cuda:2=50%") == "4GiB,cuda:2=50%");
    CHECK(lowest("25%,6GiB", 0, 80 * GiB) == 6 * GiB);
    CHECK(lowest("25%,6GiB", 0, 16 * GiB) == 4 * GiB);
    CHECK(lowest("cuda:1=4GiB,8GiB", 0, 80 * GiB) == 8 * GiB);
    CHECK(lowest("cuda:1=4GiB,8GiB", 1, 80 * GiB) == 4 * GiB);
    CHECK(lowest("cuda:1=9GiB,8GiB", 1, 80 * GiB) == 8 * GiB);
    CHECK_FALSE(lowest("cuda:1=4GiB", 0, 80 * GiB));
    for (const char *wrong : {"", ",", "8GiB,", ",8GiB", "8GiB,,2GiB", "8GiB,2Gib", "8GiB;2GiB", "8GiB, 2GiB", "=8GiB",
                              "cuda:1=", "cuda=8GiB", "8GiB=cuda:1"}) {
        INFO(wrong);
        CHECK_FALSE(parse_caps(wrong));
    }
}

TEST_CASE("A flag overrides every key of the policy file, and leaves the other fields as they are") {
    Layer file;
    file.gpu = {capped("*", "8GiB"),
                grown("cuda:0", {.start = "1GiB", .factor = 1.5, .every = std::chrono::seconds(60)})};
    const Layer out = laid(file, {{Flag::growth, "2GiB:512MiB:10s"}, {Flag::wait, "30s"}});
    for (const GpuRule &rule : out.gpu) {
        CHECK(rule.policy.growth.start == size("2GiB"));
        CHECK(rule.policy.growth.step == size("512MiB"));
        CHECK_FALSE(rule.policy.growth.factor);
        CHECK(rule.policy.growth.every == std::chrono::seconds(10));
        CHECK(rule.policy.growth.wait == std::chrono::seconds(30));
    }
    CHECK(out.gpu.front().policy.cap == size("8GiB"));
    // Without a file; flags that do not concern devices add none.
    CHECK(laid({}, {{Flag::keep_free, "10%"}}).gpu.front().policy.growth.keep_free == size("10%"));
    const Layer job = laid({}, {{Flag::steer, "1"}, {Flag::trace, "/t/%p"}, {Flag::log, "info:/l/a:b"}});
    CHECK(job.gpu.empty());
    CHECK(job.frameworks.steer == true);
    CHECK(job.trace.file == "/t/%p");
    CHECK_FALSE(job.trace.stacks);
    CHECK(laid({}, {{Flag::stacks, "64MiB"}}).trace.stacks == size("64MiB"));
    Flags none;
    for (const char *wrong : {"0B", "64", "x", ""}) CHECK(read_flag(Flag::stacks, wrong, none));
    CHECK(job.log.level == LogLevel::info);
    CHECK(job.log.file == "/l/a:b");
    CHECK_FALSE(laid({}, {{Flag::log, "debug"}}).log.file);
    CHECK(laid({}, {{Flag::steer, "0"}}).frameworks.steer == false);
}

TEST_CASE("The error for a wrong flag shows a correct value, and nothing is set") {
    const std::pair<Flag, const char *> wrong[] = {{Flag::growth, "2GiB"},
                                                   {Flag::growth, "2GiB:1GiB"},
                                                   {Flag::growth, "2GiB:1GiB:10s:1"},
                                                   {Flag::growth, "2:1GiB:10s"},
                                                   {Flag::growth, "2GiB:0B:0s"},
                                                   {Flag::growth, "2GiB:1GiB:10"},
                                                   {Flag::wait, "30"},
                                                   {Flag::keep_free, "4"},
                                                   {Flag::steer, "yes"},
                                                   {Flag::trace, ""},
                                                   {Flag::log, "verbose"},
                                                   {Flag::log, "info:"}};
    for (const auto &[flag, text] : wrong) {
        INFO(text);
        Flags into;
        const auto fault = read_flag(flag, text, into);
        REQUIRE(fault);
        CHECK(fault->find_first_of("\";") != std::string::npos);
        if (flag != Flag::log) CHECK(into == Flags());
    }
}

}  // namespace
}  // namespace curb::policy
