// The limits that a request can hit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "policy/decide.hpp"

namespace curb::policy {

enum class Obstacle : std::uint8_t {
#define CURB_OBSTACLE(name, text) name,
#include "policy/obstacles.def"
};
inline constexpr std::size_t kObstacles = 0
#define CURB_OBSTACLE(name, text) +1
#include "policy/obstacles.def"
    ;

// Returns the limit that refused a request of `bytes`; `device` if it was none of the policy's.
constexpr Obstacle obstacle_to(const Terms &terms, Bytes held, Bytes bytes) noexcept {
    if (terms.refuse_everything) return Obstacle::policy;
    if (terms.cap && !fits(terms, *terms.cap, held, bytes)) return Obstacle::cap;
    if (!fits(terms, terms.allowance, held, bytes)) return Obstacle::allowance;
    if (terms.beside_others != kUnbounded && added(held, bytes) > terms.beside_others) return Obstacle::keep_free;
    return Obstacle::device;
}

// Returns the name in traces and JSON answers: "keep_free".
const char *obstacle_name(Obstacle obstacle) noexcept;
// Returns the name in messages: "what others are to have free".
const char *obstacle_text(Obstacle obstacle) noexcept;
// Returns nullopt if there is no such limit.
std::optional<Obstacle> parse_obstacle(std::string_view name) noexcept;

}  // namespace curb::policy
