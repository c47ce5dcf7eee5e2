#include "policy/live_caps.hpp"

#include <utility>

namespace curb::policy {

Result<std::vector<std::size_t>, std::string> LiveCaps::set(const GpuKey &key, std::optional<Size> cap,
                                                            std::span<const GpuIdentity> gpus) {
    GpuRule rule{key, {}};
    rule.policy.cap = cap;
    const Matched matched = match(std::span(&rule, 1), gpus);
    if (!matched.ambiguous.empty()) return matched.ambiguous.front();
    if (!matched.unmatched.empty()) return matched.unmatched.front();
    std::vector<std::size_t> named;
    std::vector<std::vector<GpuRule>> next = by_gpu_;
    next.resize(gpus.size());
    for (std::size_t i = 0; i < gpus.size(); ++i) {
        if (!names(key, gpus[i])) continue;
        named.push_back(i);
        if (cap)
            std::erase_if(next[i], [&](const GpuRule &one) { return one.key == key; });
        else
            next[i].clear();
        if (cap) next[i].push_back(rule);
    }
    if (named.empty()) return std::string("this process sees no GPU");
    by_gpu_ = std::move(next);
    return named;
}

std::optional<Size> LiveCaps::of(std::size_t index, const GpuIdentity &gpu) const {
    return index < by_gpu_.size() ? gpu_policy_for(by_gpu_[index], gpu).cap : std::nullopt;
}

}  // namespace curb::policy
