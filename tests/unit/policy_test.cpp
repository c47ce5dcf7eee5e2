#include "policy/policy.hpp"

#include <signal.h>

#include <limits>
#include <set>

#include "catch.hpp"
#include "policy/fields.hpp"
#include "policy/names.hpp"
#include "policy/words.hpp"

using namespace curb::policy;

namespace {

Size size(const char *text) { return *parse_size(text); }
GpuRule rule(std::optional<int> ordinal, const char *cap) { return {GpuKey{ordinal}, GpuPolicy{size(cap)}}; }

}  // namespace

TEST_CASE("Without a policy there is no cap") { CHECK(cap_for(Policy{}, 0, 80 * GiB) == std::nullopt); }

TEST_CASE("A cap for every device holds for each") {
    Policy policy;
    policy.gpu = {rule({}, "25%")};
    CHECK(cap_for(policy, 0, 80 * GiB) == 20 * GiB);
    CHECK(cap_for(policy, 7, 40 * GiB) == 10 * GiB);
}

TEST_CASE("A device's own cap wins over that of every device, in whichever order they stand") {
    Policy policy;
    policy.gpu = GENERATE(std::vector<GpuRule>{rule(0, "60GiB"), rule({}, "8GiB")},
                          std::vector<GpuRule>{rule({}, "8GiB"), rule(0, "60GiB")});
    CHECK(cap_for(policy, 0, 80 * GiB) == 60 * GiB);
    CHECK(cap_for(policy, 1, 80 * GiB) == 8 * GiB);
}

TEST_CASE("A rule that says nothing of a cap leaves the one of every device in force") {
    Policy policy;
    policy.gpu = {rule({}, "8GiB"), GpuRule{GpuKey{0}, GpuPolicy{}}};
    CHECK(cap_for(policy, 0, 80 * GiB) == 8 * GiB);
}

TEST_CASE("A cap for another device is none for this one") {
    Policy policy;
    policy.gpu = {rule(1, "8GiB")};
    CHECK(cap_for(policy, 0, 80 * GiB) == std::nullopt);
}

TEST_CASE("A cap from outside the file only narrows") {
    Policy policy;
    policy.narrowed_to = size("8GiB");
    CHECK(cap_for(policy, 0, 80 * GiB) == 8 * GiB);
    policy.gpu = {rule({}, "20GiB"), rule(1, "1GiB")};
    CHECK(cap_for(policy, 0, 80 * GiB) == 8 * GiB);
    CHECK(cap_for(policy, 1, 80 * GiB) == 1 * GiB);
    policy.narrowed_to = size("50%");
    CHECK(cap_for(policy, 0, 30 * GiB) == 15 * GiB);
}

TEST_CASE("A cap of nothing is a cap") {
    Policy policy;
    policy.gpu = {rule({}, "0")};
    CHECK(cap_for(policy, 0, 80 * GiB) == Bytes{0});
}

TEST_CASE("Every release step is read by its name") {
    const ReleasePolicy every;
    REQUIRE(!every.steps.empty());
    for (const Step step : every.steps) {
        const auto parsed = parse_step(step_name(step));
        REQUIRE(parsed);
        CHECK(*parsed == step);
    }
}

TEST_CASE("Every log level is read by its name") {
    for (int i = 0; i <= static_cast<int>(LogLevel::off); ++i) {
        const auto level = static_cast<LogLevel>(i);
        const auto parsed = parse_log_level(log_level_name(level));
        REQUIRE(parsed);
        CHECK(*parsed == level);
    }
}

TEST_CASE("A signal is read by its name and written as it") {
    CHECK(*parse_signal("SIGUSR1") == SIGUSR1);
    CHECK(*parse_signal("none") == 0);
    CHECK(*parse_signal("SIGRTMIN") == SIGRTMIN);
    CHECK(*parse_signal("SIGRTMIN+3") == SIGRTMIN + 3);
    for (const char *name : {"SIGUSR1", "SIGUSR2", "SIGHUP", "SIGWINCH", "SIGRTMIN", "SIGRTMIN+30", "none"}) {
        CHECK(signal_name(*parse_signal(name)) == name);
    }
    CHECK(signal_name(SIGKILL) == "signal 9");
}

TEST_CASE("The default signal is the one that the manual names") {
    CHECK(signal_name(ReleasePolicy{}.signal) == "SIGUSR1");
}

TEST_CASE("A signal that programs need for something else is refused") {
    for (const char *name : {"SIGKILL", "SIGSTOP", "SIGSEGV", "SIGTERM", "SIGINT", "SIGCHLD"}) {
        const auto signal = parse_signal(name);
        INFO(name);
        REQUIRE_FALSE(signal);
        CHECK_THAT(signal.error(), contains("something else") && contains("SIGUSR1"));
    }
}

TEST_CASE("A signal's slip is answered with the name that was meant") {
    const auto [text, meant] = GENERATE(table<const char *, const char *>({{"SIGUSR", "SIGUSR1"},
                                                                           {"USR2", "SIGUSR2"},
                                                                           {"sigusr1", "SIGUSR1"},
                                                                           {"SIGWINCHH", "SIGWINCH"},
                                                                           {"None", "none"}}));
    const auto signal = parse_signal(text);
    REQUIRE_FALSE(signal);
    CHECK_THAT(signal.error(), contains(std::string("did you mean \"") + meant + "\"?"));
}

TEST_CASE("Real-time signals end where the system's do") {
    for (const char *name :
         {"SIGRTMIN+31", "SIGRTMIN+", "SIGRTMIN-1", "SIGRTMIN+-1", "SIGRTMIN+03", "SIGRTMIN+99999999999"}) {
        const auto signal = parse_signal(name);
        INFO(name);
        REQUIRE_FALSE(signal);
        CHECK_THAT(signal.error(), contains("SIGRTMIN+30"));
    }
}

TEST_CASE("A device is named by its ordinal, in one way") {
    CHECK(parse_gpu_key("*")->ordinal == std::nullopt);
    CHECK(parse_gpu_key("cuda:0")->ordinal == 0);
    CHECK(parse_gpu_key("cuda:15")->ordinal == 15);
    const auto [text, meant] = GENERATE(table<const char *, const char *>(
        {{"cuda:00", "cuda:0"}, {"CUDA:1", "cuda:1"}, {"cuda1", "cuda:1"}, {"gpu:2", "cuda:2"}, {"3", "cuda:3"}}));
    const auto key = parse_gpu_key(text);
    REQUIRE_FALSE(key);
    CHECK_THAT(key.error(), contains(std::string("did you mean \"") + meant + "\"?"));
}

TEST_CASE("Other names of devices are refused with those that are known") {
    const auto text = GENERATE(as<std::string>{}, "cuda:-1", "cuda:", "cuda:x", "cuda:99999999999", "nvml:0", "GPU-8f",
                               "", "0000:65:00.0", "**", "cuda:1 ");
    const auto key = parse_gpu_key(text);
    INFO(text);
    REQUIRE_FALSE(key);
    CHECK_THAT(key.error(), contains("\"*\" (every device)") && contains("\"cuda:0\""));
}

TEST_CASE("A slip is near what was meant, and other words are near nothing") {
    const std::vector<std::string_view> known{"version", "gpu", "release", "log"};
    CHECK(nearest("relese", known) == "release");
    CHECK(nearest("Version", known) == "version");
    CHECK(nearest("gup", known) == "gpu");
    CHECK(nearest("gpus", known) == "gpu");
    CHECK(nearest("rel", known) == "release");
    CHECK(nearest("logging", known) == "log");
    CHECK(nearest("cap", known).empty());
    CHECK(nearest("growth", known).empty());
    CHECK(nearest("", known).empty());
    CHECK(nearest("r", known).empty());
    CHECK(nearest(std::string(100'000, 'v'), known).empty());
}

TEST_CASE("A quoted text is cut between characters, not inside one") {
    std::string umlauts;
    for (int i = 0; i < 100; ++i) umlauts += "\xC3\xA4";
    for (const char *before : {"", "x"}) {
        const std::string quoted = quote(before + umlauts);
        const std::string shown = quoted.substr(1, quoted.find("...") - 1);
        INFO(quoted);
        CHECK(quoted.find("...") != std::string::npos);
        CHECK((shown.size() - std::string(before).size()) % 2 == 0);
    }
}

TEST_CASE("Each field of the table has a pointer of its own and a line of documentation") {
    std::set<std::string_view> pointers;
    for (const Field &field : kFields) {
        CHECK(pointers.insert(field.pointer).second);
        CHECK(field.pointer.starts_with('/'));
        CHECK_FALSE(field.doc.empty());
    }
}
