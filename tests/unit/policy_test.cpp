#include "policy/policy.hpp"

#include <signal.h>

#include <limits>
#include <set>

#include "catch.hpp"
#include "policy/fields.hpp"
#include "policy/names.hpp"
#include "policy/words.hpp"

using namespace curb::policy;

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

TEST_CASE("Each field of the table has a pointer of its own and a line of documentation") {
    std::set<std::string_view> pointers;
    for (const Field &field : kFields) {
        CHECK(pointers.insert(field.pointer).second);
        CHECK(field.pointer.starts_with('/'));
        CHECK_FALSE(field.doc.empty());
    }
}
