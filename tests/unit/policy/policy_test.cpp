#include "policy/policy.hpp"

#include <signal.h>
#include <string.h>

#include <array>
#include <set>
#include <utility>

#include "catch.hpp"
#include "policies.hpp"
#include "policy/decisions/limit.hpp"
#include "policy/kinds.hpp"
#include "policy/names.hpp"
#include "policy/values/words.hpp"

using namespace curb::policy;
using namespace std::chrono_literals;

// ---- names and words ----

TEST_CASE("Steps, kinds of memory, limits and log levels are read by their names; kinds and limits have texts") {
    for (const Step step : all_steps()) CHECK(*parse_step(step_name(step)) == step);
    for (int i = 0; i <= static_cast<int>(LogLevel::off); ++i)
        CHECK(*parse_log_level(log_level_name(static_cast<LogLevel>(i))) == static_cast<LogLevel>(i));
    std::set<std::string> texts;
    for (std::size_t i = 0; i < kKinds; ++i) {
        const auto kind = static_cast<Kind>(i);
        CHECK(parse_kind(kind_name(kind)) == kind);
        CHECK(texts.insert(kind_text(kind)).second);
    }
    for (std::size_t i = 0; i < kLimits; ++i) {
        const auto limit = static_cast<Limit>(i);
        CHECK(parse_limit(limit_name(limit)) == limit);
        CHECK(texts.insert(limit_text(limit)).second);
    }
    CHECK(error_of(parse_step("pool")) == "'pool' is not a release step; did you mean \"pools\"?");
    CHECK_FALSE(parse_kind("tensors"));
    CHECK_FALSE(parse_limit(""));
}

TEST_CASE("Each signal of the system is accepted by one name or refused") {
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
            CHECK_THAT(signal.error(), contains("something else") && contains("SIGUSR1"));
        }
    }
    for (const char *name : {"SIGUSR1", "SIGUSR2", "SIGHUP", "SIGWINCH", "SIGRTMIN", "SIGRTMIN+30", "none"})
        CHECK(signal_name(*parse_signal(name)) == name);
    CHECK(*parse_signal("SIGRTMIN+3") == SIGRTMIN + 3);
    CHECK(*parse_signal("none") == 0);
    CHECK(signal_name(SIGKILL) == "signal 9");
}

TEST_CASE("A signal that programs need, or that does not exist, is refused with the name to write") {
    for (const char *name :
         {"SIGKILL", "SIGSTOP", "SIGSEGV", "SIGBUS",  "SIGFPE",  "SIGILL",  "SIGABRT",  "SIGIOT",  "SIGTRAP",
          "SIGSYS",  "SIGTERM", "SIGINT",  "SIGQUIT", "SIGCHLD", "SIGCLD",  "SIGPIPE",  "SIGALRM", "SIGVTALRM",
          "SIGPROF", "SIGXFSZ", "SIGTSTP", "SIGTTIN", "SIGTTOU", "SIGCONT", "SIGSTKFLT"})
        CHECK_THAT(error_of(parse_signal(name)), contains("something else") && contains("SIGUSR1"));
    const std::pair<const char *, const char *> meant[] = {
        {"SIGUSR", "SIGUSR1"}, {"USR2", "SIGUSR2"}, {"sigusr1", "SIGUSR1"},      {"SIGWINCHH", "SIGWINCH"},
        {"SIGPOLL", "SIGIO"},  {"None", "none"},    {"SIGRTMAX", "SIGRTMIN+30"}, {"SIGRTMAX-2", "SIGRTMIN+28"}};
    for (const auto &[text, name] : meant)
        CHECK_THAT(error_of(parse_signal(text)), contains(std::string("\"") + name + "\""));
    for (const char *name : {"SIGRTMIN+31", "SIGRTMIN+", "SIGRTMIN-1", "SIGRTMIN+-1", "SIGRTMIN+03",
                             "SIGRTMIN+99999999999", "SIGRTMAX-99"})
        CHECK_THAT(error_of(parse_signal(name)), contains("\"SIGRTMIN+30\""));
}

TEST_CASE("A report is read by its name, and the error for a slip suggests it") {
    CHECK(*parse_report("cap") == Report::cap);
    CHECK(*parse_report("device") == Report::device);
    CHECK(parse_report("Device").error() == "'Device' is not a kind of report; did you mean \"device\"?");
    CHECK(parse_report("total").error() == R"('total' is not a kind of report; write one of "cap", "device")");
}

TEST_CASE("nearest() finds the word meant by a slip, and nothing for other words") {
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

TEST_CASE("A text in a message is on one line, short, and cut between characters") {
    CHECK(brief("a\nb\x7F") == "a\\x0Ab\\x7F");
    CHECK(brief(std::string(60, 'x')) == std::string(60, 'x'));
    CHECK(brief(std::string(61, 'x')) == std::string(60, 'x') + "...");
    CHECK(quote("a\nb", '"') == "\"a\\x0Ab\"");
    std::string umlauts;
    for (int i = 0; i < 100; ++i) umlauts += "\xC3\xA4";
    for (const std::string before : {"", "x"}) {
        const std::string quoted = quote(before + umlauts);
        REQUIRE(quoted.find("...") != std::string::npos);
        CHECK((quoted.find("...") - 1 - before.size()) % 2 == 0);
    }
    CHECK(pointer_token("a/b~c") == "a~1b~0c");  // not to be taken for the pointer's own
    CHECK(pointer_token("~1") == "~01");
}

// ---- the policy in force ----

TEST_CASE("The ceiling's devices and a cap from outside the files are kept beside the user's") {
    Layer own, ceiling;
    own.gpu = {capped("cuda:0", "4GiB")};
    ceiling.gpu = {capped("*", "50%")};
    const Policy policy = in_force(own, ceiling, {.cap = {size("2GiB")}, .job = {}});
    CHECK(policy.gpu == own.gpu);
    CHECK(policy.ceiling == ceiling.gpu);
    CHECK(policy.narrowed_to == std::vector<CapFor>{size("2GiB")});
    CHECK(in_force({}, {}, {}) == Policy());
}

TEST_CASE("Fields that the file leaves out come from the ceiling; fields in both are the user's") {
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
        expected.release.idle = 1min;  // the only one that a ceiling narrows
        CHECK(static_cast<const Layer &>(in_force(own, ceiling, {})) == expected);
        CHECK(static_cast<const Layer &>(in_force({}, ceiling, {})) == with_defaults(ceiling));
        CHECK(static_cast<const Layer &>(in_force(own, {}, {})) == with_defaults(own));
    }
}

TEST_CASE("The user's host memory for naps and the ceiling's are both kept if they cannot be compared yet") {
    Layer own, ceiling;
    for (const auto &[mine, bound] : {std::pair("50%", "64GiB"), std::pair("64GiB", "50%")}) {
        own.suspend.host_memory = size(mine);
        ceiling.suspend.host_memory = size(bound);
        const Policy policy = in_force(own, ceiling, {});
        CHECK(policy.suspend.host_memory == size(mine));
        CHECK(policy.host_memory_ceiling == size(bound));
        CHECK(in_force({}, ceiling, {}).suspend.host_memory == size(bound));
        CHECK_FALSE(in_force(own, {}, {}).host_memory_ceiling);
    }
}

TEST_CASE("A ceiling has naps leave the driver's memory where it is, and go deep sooner") {
    Layer own, ceiling;
    own.suspend = {.light = true, .deep = kNever};
    ceiling.suspend = {.light = false, .deep = 1min};
    CHECK(in_force(own, ceiling, {}).suspend == ceiling.suspend);
    CHECK(in_force(ceiling, own, {}).suspend == ceiling.suspend);
}

// ---- laid over each other ----

TEST_CASE("A layer replaces the fields that it has, and leaves the rest") {
    const ReleasePolicy all{
        .signal = SIGUSR2, .steps = std::vector{Step::pools}, .idle = 1min, .before_growth = false, .collect = false};
    Layer under, over;
    under.gpu = {capped("*", "1GiB")};
    under.release = all;
    under.log = {.level = LogLevel::debug, .file = "under.log"};
    under.frameworks = {.steer = true, .env = Environment{{"A", "1"}}};
    Layer copy, same = under;
    lay_over(copy, under);
    CHECK(copy == under);
    lay_over(same, {});
    CHECK(same == under);
    over.release.signal = 0;
    over.release.steps = std::vector{Step::frameworks};
    over.log.file = "";
    lay_over(under, over);
    ReleasePolicy expected = all;
    expected.signal = 0;
    expected.steps = std::vector{Step::frameworks};
    CHECK(under.release == expected);
    CHECK(under.log == LogPolicy{.level = LogLevel::debug, .file = ""});
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

// ---- conflicts between fields ----

// Returns each conflict as "key field: message".
std::vector<std::string> conflicts_of(const std::vector<GpuRule> &rules) {
    std::vector<std::string> out;
    for (const Conflict &one : conflicts(rules))
        out.push_back(gpu_key_text(one.key) + " " + one.field + ": " + one.message);
    return out;
}

TEST_CASE("Growth that has no start, or that could never grow, is a conflict") {
    const auto start = [](const char *of) { return grown(of, {.start = "2GiB"}); };
    const auto step = [](const char *of) { return grown(of, {.step = "1GiB", .every = 10s}); };
    CHECK(
        conflicts_of({start("cuda:0")}) ==
        std::vector<std::string>{"cuda:0 growth/start: the allowance would never grow; add \"step\" or \"factor\", or "
                                 "write \"cap\" instead"});
    const auto found =
        conflicts_of({grown("*", {.step = "1GiB", .factor = 1.5, .every = 10s, .keep_free = "1GiB", .wait = 10s})});
    REQUIRE(found.size() == 3);
    for (std::size_t i = 0; i < found.size(); ++i)
        CHECK_THAT(found[i], contains(std::array{"* growth/step: ", "* growth/factor: ", "* growth/every: "}[i]) &&
                                 contains("no effect without \"start\""));
    // A device's own key may complete the growth of "*"; the other way round other devices could never grow.
    const auto incomplete = conflicts_of({start("*"), step("cuda:0")});
    REQUIRE(incomplete.size() == 1);
    CHECK_THAT(incomplete[0], contains("* growth/start"));
    for (const std::vector<GpuRule> &fine :
         std::vector<std::vector<GpuRule>>{{},
                                           {capped("*", "8GiB"), grown("cuda:0", {})},
                                           {grown("cuda:0", {.start = "2GiB", .step = "1GiB"})},
                                           {grown("cuda:0", {.start = "2GiB", .factor = 1.5})},
                                           {grown("*", {.keep_free = "1GiB", .wait = 10s})},
                                           {step("*"), start("cuda:0")},
                                           {start("cuda:0"), step("*")},
                                           {step("*"), start("cuda:0"), capped("cuda:1", "10GiB")}})
        CHECK(conflicts_of(fine).empty());
}

TEST_CASE("An allowance that begins above the cap is a conflict if the two can be compared") {
    const auto found = [](const char *cap, const char *start) {
        GpuRule rule = grown("*", {.start = start, .step = "1GiB"});
        rule.policy.cap = size(cap);
        return conflicts_of({rule});
    };
    CHECK(found("8GiB", "8193MiB") ==
          std::vector<std::string>{"* growth/start: it begins above the cap: 8193MiB is more than "
                                   "8GiB; write less, or leave the growth out"});
    REQUIRE(found("50%", "50.01%").size() == 1);
    CHECK_THAT(found("50%", "50.01%")[0], contains("50.01% is more than 50%"));
    CHECK(found("8GiB", "8GiB").empty());
    CHECK(found("50%", "50%").empty());
    CHECK(found("1GiB", "100%").empty());  // that depends on the device
    CHECK(found("1%", "100GiB").empty());
    const auto of_device = conflicts_of({capped("*", "8GiB"), grown("cuda:1", {.start = "9GiB", .step = "1GiB"})});
    REQUIRE(of_device.size() == 1);
    CHECK_THAT(of_device[0], contains("cuda:1 growth/start"));
}

TEST_CASE("The lowest cap of a job applies on each device, and the terms say if it is the ceiling's") {
    const GpuIdentity gpu{0, {}, "", "GPU-8f3a", ""};
    constexpr Bytes kTotal = 80 * GiB;
    Layer own, ceiling;
    CHECK_FALSE(has_job_cap(in_force(own, ceiling, {})));
    CHECK_FALSE(terms_for(in_force(own, ceiling, {}), gpu, kTotal).job_cap);
    own.job.cap = size("50%");
    const auto cap = [&](Narrowing narrowed = {}) {
        const Policy policy = in_force(own, ceiling, std::move(narrowed));
        CHECK(has_job_cap(policy));
        return terms_for(policy, gpu, kTotal);
    };
    CHECK(cap().job_cap == 40 * GiB);
    CHECK_FALSE(cap().cap);
    CHECK(cap({.cap = {}, .job = {size("60GiB"), size("30GiB")}}).job_cap == 30 * GiB);
    CHECK(cap({.cap = {}, .job = {{size("10GiB"), key("cuda:0")}, {size("5GiB"), key("cuda:1")}}}).job_cap == 10 * GiB);
    own.gpu = {{key("cuda:0"), {}}};
    own.gpu[0].policy.job_cap = size("20GiB");
    CHECK(cap().job_cap == 20 * GiB);
    CHECK_FALSE(cap().job_ceiling);
    ceiling.job = {.cap = size("10GiB"), .of = JobOf::user};
    CHECK(cap().job_cap == 10 * GiB);
    CHECK(cap().job_ceiling);
    ceiling.job.cap = size("90%");
    CHECK(cap().job_cap == 20 * GiB);
    // The wider job applies: a job of one tree does not lift the ceiling on all processes of the user.
    own.job.of = JobOf::tree;
    CHECK(in_force(own, ceiling, {}).job.of == JobOf::user);
    // Of two values of `share` the one that shows less.
    own.share = Share::none;
    ceiling.share = Share::order;
    CHECK(in_force(own, ceiling, {}).share == Share::none);
    own.share = Share::all;
    CHECK(in_force(own, ceiling, {}).share == Share::order);
}
