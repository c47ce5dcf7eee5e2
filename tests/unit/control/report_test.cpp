// The line that reports a release.
#include "control/release_report.hpp"

#include <limits>

#include "catch.hpp"
#include "policy/values/size.hpp"

using namespace curb;
using control::ReleaseReport;
using control::text;
using policy::MiB;
using policy::Step;

namespace {

constexpr auto mib = [](std::int64_t n) { return n * static_cast<std::int64_t>(MiB); };

}  // namespace

TEST_CASE("A report is one line: the sum, how long it took, why, and each step") {
    const std::pair<ReleaseReport, const char *> reports[] = {
        {{"SIGUSR1", {{Step::pools, 0, 0.1, "nothing reserved"}, {Step::frameworks, 3'672'197'038, 43, ""}}, 44.2},
         "released 3.42 GiB in 44 ms on SIGUSR1: pools 0 B (nothing reserved), frameworks 3.42 GiB"},
        {{"cap lowered", {{Step::pools, mib(512), 4.6, ""}, {Step::frameworks, mib(1024), 44, ""}}, 48.6},
         "released 1.5 GiB in 49 ms on cap lowered: pools 512 MiB, frameworks 1 GiB"},
        // The device has less free memory afterwards.
        {{"SIGUSR1", {{Step::pools, mib(-2), 1, ""}}, 1}, "released -2 MiB in 1 ms on SIGUSR1: pools -2 MiB"},
        {{"SIGUSR1", {}, 0}, "released 0 B in 0 ms on SIGUSR1: the policy has no release steps"},
    };
    for (const auto &[report, line] : reports) CHECK(text(report) == line);
    const double nan = std::numeric_limits<double>::quiet_NaN();
    const std::pair<double, const char *> times[] = {{4.64, "4.6"},    {0.04, "0"}, {9.97, "10"},
                                                     {1234.5, "1235"}, {-1, "0"},   {nan, "0"}};
    for (const auto &[time, written] : times)
        CHECK_THAT(text({"x", {}, time}), contains(std::string(" in ") + written + " ms "));
}

TEST_CASE("Frameworks whose allocator returns nothing are named, with the remedy") {
    const std::string remedy =
        " nothing before the process ends; if it starts under a policy with \"frameworks\": { \"steer\": true }, it "
        "gets "
        "one that does";
    CHECK(text({"SIGUSR1", {{Step::pools, 0, 0, ""}}, 1, {"TensorFlow"}}) ==
          "released 0 B in 1 ms on SIGUSR1: pools 0 B; TensorFlow's allocator returns" + remedy);
    CHECK(control::returns_nothing_text({"TensorFlow", "JAX"}) == "TensorFlow's and JAX's allocators return" + remedy);
    CHECK(control::returns_nothing_text({}).empty());
}

TEST_CASE("Sums beyond 64 bits and reasons of several lines do no harm") {
    constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
    constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min();
    CHECK_THAT(text({"x", {{Step::pools, kMost, 0, ""}, {Step::pools, kMost, 0, ""}}, 0}),
               contains("released 8388608 TiB"));
    CHECK_THAT(text({"x", {{Step::pools, kLeast, 0, ""}, {Step::pools, kLeast, 0, ""}}, 0}),
               contains("released -8388608 TiB"));
    CHECK(text({"a\nb", {{Step::pools, 0, 0, "c\nd"}}, 0}).find('\n') == std::string::npos);
}
