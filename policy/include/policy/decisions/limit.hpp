// The limits that a request can hit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "policy/decisions/decide.hpp"

namespace curb::policy {

enum class Limit : std::uint8_t {
#define CURB_LIMIT(name, text) name,
#include "policy/decisions/limits.def"
};
inline constexpr std::size_t kLimits = 0
#define CURB_LIMIT(name, text) +1
#include "policy/decisions/limits.def"
    ;

// Returns the limit that refused a request of `bytes`; `device` if no limit of the policy did.
constexpr Limit limit_hit(const Terms &terms, Bytes held, Bytes bytes) noexcept {
    if (terms.refuse_everything) return Limit::policy;
    if (terms.cap && !fits(terms, *terms.cap, held, bytes)) return terms.by_job ? Limit::job : Limit::cap;
    if (!fits(terms, terms.allowance, held, bytes)) return Limit::allowance;
    if (terms.limit_beside_others != kUnbounded && added(held, bytes) > terms.limit_beside_others)
        return Limit::keep_free;
    return Limit::device;
}

// Returns a cap under which a refused request would have fitted: above what was `held` and the cap that refused it,
// with 256 MiB for the driver's own memory. Rounded up to a GiB, or to a quarter of a GiB below 4 GiB.
Bytes cap_that_serves(Bytes held, Bytes bytes, Bytes refused_by) noexcept;

// Returns the name in traces and JSON answers: "keep_free".
const char *limit_name(Limit limit) noexcept;
// Returns the name in messages: "the memory kept free for others".
const char *limit_text(Limit limit) noexcept;
// Returns nullopt if there is no such limit.
std::optional<Limit> parse_limit(std::string_view name) noexcept;

}  // namespace curb::policy
