#include "policy/decisions/limit.hpp"

#include <algorithm>

namespace curb::policy {
namespace {

constexpr const char *kLimitNames[] = {
#define CURB_LIMIT(name, text) #name,
#include "policy/decisions/limits.def"
};
constexpr const char *kLimitTexts[] = {
#define CURB_LIMIT(name, text) text,
#include "policy/decisions/limits.def"
};

}  // namespace

Bytes cap_that_serves(Bytes held, Bytes bytes, Bytes refused_by) noexcept {
    const Bytes least = std::max(added(added(held, bytes), GiB / 4), added(refused_by, 1));
    const Bytes step = least < 4 * GiB ? GiB / 4 : GiB;
    return added(least, step - 1) / step * step;
}

const char *limit_name(Limit limit) noexcept { return kLimitNames[static_cast<std::size_t>(limit)]; }
const char *limit_text(Limit limit) noexcept { return kLimitTexts[static_cast<std::size_t>(limit)]; }

std::optional<Limit> parse_limit(std::string_view name) noexcept {
    for (std::size_t limit = 0; limit < kLimits; ++limit)
        if (name == kLimitNames[limit]) return static_cast<Limit>(limit);
    return std::nullopt;
}

}  // namespace curb::policy
