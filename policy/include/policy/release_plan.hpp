// Which step a release takes next, and when it has done enough. Pure: what a step gave back comes in from outside.
//
// One plan runs at a time. A request that comes meanwhile joins it: steps that begin from then on count for it too, and
// what it has missed is taken once more at the end. So memory that a program freed before it asked is always looked
// for after it asked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "policy/policy.hpp"

namespace curb::policy {

struct ReleaseRequest {
    std::optional<Bytes> wanted{};             // as much is enough; none: all that there is
    std::optional<std::vector<Step>> steps{};  // in this order; none: those of the policy
    friend bool operator==(const ReleaseRequest &, const ReleaseRequest &) = default;
};

class ReleasePlan {
  public:
    // `steps`: those of the policy, in its order.
    explicit ReleasePlan(std::vector<Step> steps) : steps_(std::move(steps)) {}

    // Whether more requests may join: until the first one is served. Those that come later are for the next plan, or
    // a plan would not end while requests keep coming.
    [[nodiscard]] bool open() const noexcept { return joined_.empty() || !served(joined_.front()); }
    void join(const ReleaseRequest &request);

    // The step to begin now; none: every request is served.
    std::optional<Step> begin();
    // That step has ended and gave back `freed` bytes (less than none: the program took more meanwhile).
    void ended(std::int64_t freed);

  private:
    struct Joined {
        std::optional<Bytes> wanted;
        std::vector<Step> left;  // steps that have not begun since it joined
        std::int64_t freed = 0;  // by steps that have
    };
    static bool served(const Joined &one) noexcept {
        return one.left.empty() || (one.wanted && one.freed >= 0 && static_cast<Bytes>(one.freed) >= *one.wanted);
    }

    std::vector<Step> steps_;
    std::vector<Joined> joined_;
    Step step_{};              // the one that has begun
    std::size_t present_ = 0;  // how many had joined when it began
};

}  // namespace curb::policy
