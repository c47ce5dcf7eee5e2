// Chooses the next step of a release, and ends it when enough was freed. Pure: callers pass the bytes that each step
// freed.
//
// One plan runs at a time. A request that arrives meanwhile joins it: later steps count for it too, and the steps that
// it missed run again at the end. So for each request every step runs after it, and finds the memory that the program
// freed before it.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "policy/policy.hpp"

namespace curb::policy {

struct ReleaseRequest {
    std::optional<Bytes> wanted{};             // enough; nullopt: all
    std::optional<std::vector<Step>> steps{};  // in this order; nullopt: those of the policy
    friend bool operator==(const ReleaseRequest &, const ReleaseRequest &) = default;
};

class ReleasePlan {
  public:
    // `steps`: those of the policy, in order.
    explicit ReleasePlan(std::vector<Step> steps) : steps_(std::move(steps)) {}

    // True until the first request is served. Later requests wait for the next plan, so that a plan ends even if
    // requests keep coming.
    [[nodiscard]] bool open() const noexcept { return joined_.empty() || !served(joined_.front()); }
    void join(const ReleaseRequest &request);

    // Returns the step to begin now. nullopt if every request is served.
    std::optional<Step> begin();
    // Ends that step. `freed`: the bytes that it freed.
    void ended(Bytes freed);

  private:
    struct Joined {
        std::optional<Bytes> wanted;
        std::vector<Step> left;  // steps that have not begun since
        Bytes freed = 0;         // by steps that began since
    };
    static bool served(const Joined &one) noexcept {
        return one.left.empty() || (one.wanted && one.freed >= *one.wanted);
    }

    std::vector<Step> steps_;
    std::vector<Joined> joined_;
    Step step_{};              // the one that has begun
    std::size_t present_ = 0;  // the number of requests when it began
};

}  // namespace curb::policy
