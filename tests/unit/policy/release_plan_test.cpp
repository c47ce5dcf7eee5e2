#include "policy/decisions/release_plan.hpp"

#include "catch.hpp"

using namespace curb::policy;

namespace {

ReleasePlan plan_of(std::vector<Step> steps, const ReleaseRequest &first = {}) {
    ReleasePlan plan(std::move(steps));
    plan.join(first);
    return plan;
}

// Takes every step that is due. Each frees `freed` bytes. Returns the steps.
std::vector<Step> rest_of(ReleasePlan &plan, Bytes freed = 0) {
    std::vector<Step> taken;
    while (const auto step = plan.begin()) {
        taken.push_back(*step);
        plan.ended(freed);
    }
    return taken;
}

using Steps = std::vector<Step>;
const Steps kAll{Step::cache, Step::pools, Step::frameworks};

}  // namespace

TEST_CASE("A release takes the policy's steps, or its own, in their order, until the wanted bytes are freed") {
    auto plan = plan_of({Step::frameworks, Step::cache, Step::pools});
    CHECK(rest_of(plan) == Steps{Step::frameworks, Step::cache, Step::pools});
    auto own = plan_of(kAll, {.steps = Steps{Step::pressure, Step::cache}});
    CHECK(rest_of(own) == Steps{Step::pressure, Step::cache});
    auto little = plan_of(kAll, {.wanted = 3 * MiB});
    CHECK(rest_of(little, 2 * MiB) == Steps{Step::cache, Step::pools});
}

TEST_CASE("A release of 0 bytes takes no step") {
    auto none = plan_of(kAll, {.wanted = 0});
    CHECK(rest_of(none).empty());
}

TEST_CASE("A request that joins shares the steps to come, and those that it missed are taken again") {
    auto plan = plan_of(kAll);
    plan.join({});
    REQUIRE(plan.begin() == Step::cache);
    plan.join({});  // while the first step runs: the step may have measured before the request
    plan.ended(0);
    CHECK(rest_of(plan) == Steps{Step::pools, Step::frameworks, Step::cache});
}

TEST_CASE("Memory released before a request joined does not count for it") {
    auto plan = plan_of(kAll);
    REQUIRE(plan.begin() == Step::cache);
    plan.ended(8 * MiB);
    plan.join({.wanted = 8 * MiB});
    CHECK(plan.begin() == Step::pools);
    plan.ended(8 * MiB);
    CHECK(rest_of(plan) == Steps{Step::frameworks});  // for the first request
}

TEST_CASE("A request that wants little does not end the release of one that wants all") {
    auto plan = plan_of(kAll, {.wanted = MiB});
    plan.join({});
    CHECK(rest_of(plan, MiB) == kAll);
}

TEST_CASE("A plan takes no more requests once its first is served, so it ends however many come") {
    auto plan = plan_of({Step::cache, Step::pools});
    int joined = 0;
    std::vector<Step> taken;
    for (; plan.open(); ++joined) plan.join({}), taken.push_back(plan.begin().value()), plan.ended(0);
    CHECK(joined == 2);
    CHECK(rest_of(plan).size() == 1);
}

TEST_CASE("Absurd figures do not overflow") {
    auto plan = plan_of(kAll, {.wanted = kUnbounded});
    CHECK(rest_of(plan, kUnbounded / 2 + 1) == Steps{Step::cache, Step::pools});
}
