#include "policy/policy.hpp"

#include <signal.h>
#include <string.h>

#include <set>
#include <utility>

#include "catch.hpp"
#include "policies.hpp"
#include "policy/kinds.hpp"
#include "policy/names.hpp"
#include "policy/obstacle.hpp"
#include "policy/words.hpp"

using namespace curb::policy;
using namespace std::chrono_literals;

// ---- names and words ----

TEST_CASE("Every release step is read by its name") {
    REQUIRE(!all_steps().empty());
    for (const Step step : all_steps()) {
        const auto parsed = parse_step(step_name(step));
        REQUIRE(parsed);
        CHECK(*parsed == step);
    }
    CHECK(parse_step("pool").error() == "'pool' is not a release step; did you mean \"pools\"?");
}

TEST_CASE("Every kind of memory and every obstacle is read by its name, and has a text of its own") {
    std::set<std::string> texts;
    for (std::size_t i = 0; i < kKinds; ++i) {
        const auto kind = static_cast<Kind>(i);
        CHECK(parse_kind(kind_name(kind)) == kind);
        CHECK(texts.insert(kind_text(kind)).second);
    }
    for (std::size_t i = 0; i < kObstacles; ++i) {
        const auto obstacle = static_cast<Obstacle>(i);
        CHECK(parse_obstacle(obstacle_name(obstacle)) == obstacle);
        CHECK(texts.insert(obstacle_text(obstacle)).second);
    }
    CHECK_FALSE(parse_kind("tensors"));
    CHECK_FALSE(parse_obstacle(""));
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

TEST_CASE("A signal that programs need for something else is refused") {
    for (const char *name :
         {"SIGKILL", "SIGSTOP", "SIGSEGV", "SIGBUS",  "SIGFPE",  "SIGILL",  "SIGABRT",  "SIGIOT",  "SIGTRAP",
          "SIGSYS",  "SIGTERM", "SIGINT",  "SIGQUIT", "SIGCHLD", "SIGCLD",  "SIGPIPE",  "SIGALRM", "SIGVTALRM",
          "SIGPROF", "SIGXFSZ", "SIGTSTP", "SIGTTIN", "SIGTTOU", "SIGCONT", "SIGSTKFLT"}) {
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
                                                                           {"SIGPOLL", "SIGIO"},
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

TEST_CASE("Each signal of the system is either taken by one name or refused by it") {
    for (int number = 1; number <= SIGRTMAX; ++number) {
        if (number > SIGSYS && number < SIGRTMIN) continue;  // libc keeps these for itself; they have no names
        const char *abbreviation = number == SIGIO ? "IO" : sigabbrev_np(number);  // glibc says POLL
        const std::string name = abbreviation ? std::string("SIG") + abbreviation : signal_name(number);
        const auto signal = parse_signal(name);
        INFO(name);
        if (signal) {
            CHECK(*signal == number);
            CHECK(signal_name(number) == name);
        } else {
            CHECK_THAT(signal.error(), contains("something else"));
        }
    }
}

TEST_CASE("Real-time signals that are counted from the end are answered with the name to write") {
    const auto last = parse_signal("SIGRTMAX"), third = parse_signal("SIGRTMAX-2"),
               beyond = parse_signal("SIGRTMAX-99");
    REQUIRE_FALSE((last || third || beyond));
    CHECK_THAT(last.error(), contains("write \"SIGRTMIN+30\""));
    CHECK_THAT(third.error(), contains("write \"SIGRTMIN+28\""));
    CHECK_THAT(beyond.error(), contains("\"SIGRTMIN\" to \"SIGRTMIN+30\""));
}

TEST_CASE("A report is read by its name, and a slip is answered with it") {
    CHECK(*parse_report("cap") == Report::cap);
    CHECK(*parse_report("device") == Report::device);
    CHECK(parse_report("Device").error() == "'Device' is not a kind of report; did you mean \"device\"?");
    CHECK(parse_report("total").error() == R"('total' is not a kind of report; write one of "cap", "device")");
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

TEST_CASE("A text in a message is on one line, and short") {
    CHECK(brief("a\nb\x7F") == "a\\x0Ab\\x7F");
    CHECK(brief(std::string(60, 'x')) == std::string(60, 'x'));
    CHECK(brief(std::string(61, 'x')) == std::string(60, 'x') + "...");
    CHECK(quote("a\nb", '"') == "\"a\\x0Ab\"");
}

TEST_CASE("A key in a JSON pointer keeps its slashes and tildes apart from the pointer's own") {
    CHECK(pointer_token("a/b~c") == "a~1b~0c");
    CHECK(pointer_token("~1") == "~01");
}

// ---- the policy in force ----

TEST_CASE("A process without a policy has what the manual says, and no caps") {
    const Policy policy;
    CHECK(policy.gpu.empty());
    CHECK(policy.ceiling.empty());
    CHECK(policy.narrowed_to.empty());
    CHECK(signal_name(*policy.release.signal) == "SIGUSR1");
    CHECK(*policy.release.steps == all_steps());
    CHECK_FALSE(policy.release.idle);
    CHECK(*policy.release.before_growth);
    CHECK_FALSE(*policy.release.collect);
    CHECK_FALSE(policy.frameworks.steer);
    CHECK(policy.frameworks.env->empty());
    CHECK(*policy.log.level == LogLevel::warning);
    CHECK(policy.log.file->empty());
    CHECK(policy.trace.file->empty());
}

TEST_CASE("In force is what the file says, and for what it leaves out what that means") {
    Layer own;
    own.gpu = {capped("cuda:0", "4GiB")};
    own.release.signal = 0;
    own.release.before_growth = false;
    own.frameworks.env = Environment{{"A", "1"}};
    own.log.file = "curb.log";
    Policy expected;
    expected.gpu = own.gpu;
    expected.release.signal = 0;
    expected.release.before_growth = false;
    expected.frameworks.env = Environment{{"A", "1"}};
    expected.log.file = "curb.log";
    CHECK(in_force(own, {}, {}) == expected);
    CHECK(in_force({}, {}, {}) == Policy());
}

TEST_CASE("The ceiling's devices and a cap from outside the files are kept beside the user's") {
    Layer own, ceiling;
    own.gpu = {capped("cuda:0", "4GiB")};
    ceiling.gpu = {capped("*", "50%")};
    const Policy policy = in_force(own, ceiling, {*parse_size("2GiB")});
    CHECK(policy.gpu == own.gpu);
    CHECK(policy.ceiling == ceiling.gpu);
    CHECK(policy.narrowed_to == std::vector{*parse_size("2GiB")});
}

TEST_CASE("What the file leaves out is as the ceiling has it; what both say is the user's own") {
    Layer low, high;
    low.release = {
        .signal = 0, .steps = std::vector{Step::pools}, .idle = 1min, .before_growth = false, .collect = false};
    low.frameworks = {.steer = false, .env = Environment{{"A", "1"}}};
    low.log = {.level = LogLevel::debug, .file = "low.log"};
    low.trace = {.file = "low.json"};
    high.release = {.signal = SIGUSR2,
                    .steps = std::vector{Step::frameworks},
                    .idle = 2min,
                    .before_growth = true,
                    .collect = true};
    high.frameworks = {.steer = true, .env = Environment{{"B", "1"}}};
    high.log = {.level = LogLevel::error, .file = "high.log"};
    high.trace = {.file = "high.json"};
    const auto with_defaults = [](const Layer &said) {
        Layer layer = Policy();
        lay_over(layer, said);
        return layer;
    };
    for (const auto &[own, ceiling] : {std::pair(low, high), std::pair(high, low)}) {
        Layer expected = with_defaults(own);
        expected.release.idle = 1min;  // the one that a ceiling narrows
        CHECK(static_cast<const Layer &>(in_force(own, ceiling, {})) == expected);
        CHECK(static_cast<const Layer &>(in_force({}, ceiling, {})) == with_defaults(ceiling));
        CHECK(static_cast<const Layer &>(in_force(own, {}, {})) == with_defaults(own));
    }
}

// ---- laid over each other ----

TEST_CASE("What is laid over replaces what it says, and leaves the rest") {
    Layer under, over;
    under.release = {
        .signal = SIGUSR2, .steps = std::vector{Step::pools}, .idle = 1min, .before_growth = false, .collect = false};
    under.log = {.level = LogLevel::debug, .file = "under.log"};
    over.release.signal = 0;
    over.release.steps = std::vector{Step::frameworks};
    over.log.file = "";
    lay_over(under, over);
    CHECK(under.release == ReleasePolicy{.signal = 0,
                                         .steps = std::vector{Step::frameworks},
                                         .idle = 1min,
                                         .before_growth = false,
                                         .collect = false});
    CHECK(under.log == LogPolicy{.level = LogLevel::debug, .file = ""});
}

TEST_CASE("Laying nothing over changes nothing") {
    Layer under;
    under.gpu = {capped("*", "1GiB")};
    under.frameworks = {.steer = true, .env = Environment{{"A", "1"}}};
    const Layer before = under;
    lay_over(under, {});
    CHECK(under == before);
    Layer empty;
    lay_over(empty, before);
    CHECK(empty == before);
}

TEST_CASE("Devices are laid over each other by key, field by field") {
    Layer under, over;
    under.gpu = {capped("*", "1GiB"), capped("3b:00.0", "2GiB")};
    under.gpu[1].policy.report = Report::device;
    over.gpu = {capped("00000000:3B:00.0", "3GiB"), capped("cuda:0", "4GiB")};
    lay_over(under, over);
    REQUIRE(under.gpu.size() == 3);
    CHECK(under.gpu[0] == capped("*", "1GiB"));
    CHECK(under.gpu[1].policy.cap == *parse_size("3GiB"));
    CHECK(under.gpu[1].policy.report == Report::device);
    CHECK(under.gpu[2] == capped("cuda:0", "4GiB"));
}

TEST_CASE("Environments are laid over each other by name") {
    Layer under, over;
    over.frameworks.env = Environment{{"B", "2"}, {"C", "3"}};
    lay_over(under, over);
    CHECK(under.frameworks.env == over.frameworks.env);
    under.frameworks.env = Environment{{"A", "1"}, {"B", "1"}};
    lay_over(under, over);
    CHECK(under.frameworks.env == Environment{{"A", "1"}, {"B", "2"}, {"C", "3"}});
    over.frameworks.env = Environment{};
    lay_over(under, over);
    CHECK(under.frameworks.env->size() == 3);
}

TEST_CASE("A step replaces a factor, and a factor a step") {
    const auto laid = [](const GrowthWords &under, const GrowthWords &over) {
        Layer out, upper;
        out.gpu = {grown("*", under)};
        upper.gpu = {grown("*", over)};
        lay_over(out, upper);
        return out.gpu[0];
    };
    CHECK(laid({.step = "1GiB"}, {.factor = 1.5}) == grown("*", {.factor = 1.5}));
    CHECK(laid({.factor = 1.5}, {.step = "1GiB"}) == grown("*", {.step = "1GiB"}));
    CHECK(laid({.step = "1GiB"}, {.every = 10s}) == grown("*", {.step = "1GiB", .every = 10s}));
    CHECK(laid({.factor = 1.5}, {.every = 10s}) == grown("*", {.factor = 1.5, .every = 10s}));
    CHECK(laid({.step = "1GiB"}, {.step = "2GiB"}) == grown("*", {.step = "2GiB"}));
}

// ---- what fields say against each other ----

TEST_CASE("An allowance that could never grow is a conflict") {
    const auto found = conflicts(std::vector{grown("cuda:0", {.start = "2GiB"})});
    REQUIRE(found.size() == 1);
    CHECK(found[0].key == key("cuda:0"));
    CHECK(found[0].field == "growth/start");
    CHECK(found[0].message == R"(the allowance would never grow; add "step" or "factor", or write "cap" instead)");
    CHECK(conflicts(std::vector{grown("cuda:0", {.start = "2GiB", .step = "1GiB"})}).empty());
    CHECK(conflicts(std::vector{grown("cuda:0", {.start = "2GiB", .factor = 1.5})}).empty());
}

TEST_CASE("Growth that begins nowhere is a conflict, each part of it") {
    const auto found = conflicts(
        std::vector{grown("*", {.step = "1GiB", .factor = 1.5, .every = 10s, .keep_free = "1GiB", .wait = 10s})});
    REQUIRE(found.size() == 3);
    CHECK(found[0].field == "growth/step");
    CHECK(found[1].field == "growth/factor");
    CHECK(found[2].field == "growth/every");
    for (const Conflict &conflict : found) CHECK_THAT(conflict.message, contains("no effect without \"start\""));
}

TEST_CASE("Keeping memory free and waiting for room need no allowance") {
    CHECK(conflicts(std::vector{grown("*", {.keep_free = "1GiB", .wait = 10s})}).empty());
}

TEST_CASE("What is said for every device may be completed by a device's own key") {
    const auto step = [](const char *of) { return grown(of, {.step = "1GiB", .every = 10s}); };
    const auto start = [](const char *of) { return grown(of, {.start = "2GiB"}); };
    CHECK(conflicts(std::vector{step("*"), start("cuda:0")}).empty());
    CHECK(conflicts(std::vector{start("cuda:0"), step("*")}).empty());
    // Nor is it another device's fault, which says nothing of growth.
    CHECK(conflicts(std::vector{step("*"), start("cuda:0"), capped("cuda:1", "10GiB")}).empty());
    // The other way round the other devices' allowance would never grow.
    const auto found = conflicts(std::vector{start("*"), step("cuda:0")});
    REQUIRE(found.size() == 1);
    CHECK(found[0].key == key("*"));
}

TEST_CASE("An allowance that begins above the cap is a conflict where the two can be compared") {
    const auto said = [](const char *cap, const char *start) {
        GpuRule rule = grown("*", {.start = start, .step = "1GiB"});
        rule.policy.cap = size(cap);
        const auto found = conflicts(std::vector{rule});
        return found.empty() ? std::string() : found[0].field + ": " + found[0].message;
    };
    CHECK(said("8GiB", "8GiB").empty());
    CHECK(said("50%", "50%").empty());
    CHECK(said("8GiB", "8193MiB") ==
          "growth/start: it begins above the cap: 8193MiB is more than 8GiB; write less, or leave the growth out");
    CHECK_THAT(said("50%", "50.01%"), contains("50.01% is more than 50%"));
    CHECK(said("1GiB", "100%").empty());  // that depends on the device
    CHECK(said("1%", "100GiB").empty());
}

TEST_CASE("A device's own start is held against the cap of every device") {
    const auto found = conflicts(std::vector{capped("*", "8GiB"), grown("cuda:1", {.start = "9GiB", .step = "1GiB"})});
    REQUIRE(found.size() == 1);
    CHECK(found[0].key == key("cuda:1"));
    CHECK(found[0].field == "growth/start");
}

TEST_CASE("Rules that say nothing against each other have no conflicts") {
    CHECK(conflicts({}).empty());
    CHECK(conflicts(std::vector{capped("*", "8GiB"), grown("cuda:0", {})}).empty());
}
