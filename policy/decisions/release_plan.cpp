#include "policy/decisions/release_plan.hpp"

#include <algorithm>

#include "policy/decisions/growth.hpp"

namespace curb::policy {

void ReleasePlan::join(const ReleaseRequest &request) {
    joined_.push_back({request.wanted, request.steps.value_or(steps_), 0});
}

std::optional<Step> ReleasePlan::begin() {
    const auto next = std::find_if(joined_.begin(), joined_.end(), [](const Joined &one) { return !served(one); });
    if (next == joined_.end()) return std::nullopt;
    step_ = next->left.front();
    present_ = joined_.size();
    return step_;
}

void ReleasePlan::ended(Bytes freed) {
    for (std::size_t i = 0; i < present_; ++i) {
        Joined &one = joined_[i];
        one.freed = added(one.freed, freed);
        std::erase(one.left, step_);
    }
}

}  // namespace curb::policy
