// The small tables: what kinds of memory, obstacles and steps are called, and sums over them.
#include <set>

#include "catch.hpp"
#include "control/status.hpp"
#include "policy/kinds.hpp"
#include "policy/obstacle.hpp"
#include "policy/size.hpp"

using namespace curb;

TEST_CASE("Every kind of memory and every obstacle has a name that is read again, and a text of its own") {
    std::set<std::string> texts;
    for (std::size_t i = 0; i < policy::kKinds; ++i) {
        const auto kind = static_cast<policy::Kind>(i);
        CHECK(policy::parse_kind(policy::kind_name(kind)) == kind);
        CHECK(texts.insert(policy::kind_text(kind)).second);
    }
    for (std::size_t i = 0; i < policy::kObstacles; ++i) {
        const auto obstacle = static_cast<policy::Obstacle>(i);
        CHECK(policy::parse_obstacle(policy::obstacle_name(obstacle)) == obstacle);
        CHECK(texts.insert(policy::obstacle_text(obstacle)).second);
    }
    CHECK(texts.size() == policy::kKinds + policy::kObstacles);
    CHECK(!policy::parse_kind("tensors"));
    CHECK(!policy::parse_obstacle(""));
}

TEST_CASE("What was refused and what was released of a device are sums") {
    control::GpuStatus gpu;
    CHECK(control::refused(gpu) == 0);
    CHECK(control::released(gpu) == 0);
    gpu.refused = {1, 2, 3, 4, 5};
    gpu.released = {10, 20, 30, 40};
    CHECK(control::refused(gpu) == 15);
    CHECK(control::released(gpu) == 100);
}

TEST_CASE("A size of more decimals than bytes can tell is said to have too many") {
    CHECK(policy::parse_size("1." + std::string(18, '5') + "GiB"));
    const auto size = policy::parse_size("1." + std::string(19, '5') + "GiB");
    REQUIRE(!size);
    CHECK_THAT(size.error(), contains("too many decimals"));
}
