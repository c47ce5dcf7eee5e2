// What stands in the way of a request.
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

// Which limit a request of `bytes` meets that was not granted; `device`: none of the policy's.
constexpr Obstacle obstacle_to(const Terms &terms, Bytes held, Bytes bytes) noexcept {
    if (terms.refuse_everything) return Obstacle::policy;
    if (terms.cap && !fits(terms, *terms.cap, held, bytes)) return Obstacle::cap;
    if (!fits(terms, terms.allowance, held, bytes)) return Obstacle::allowance;
    if (terms.beside_others != kUnbounded && added(held, bytes) > terms.beside_others) return Obstacle::keep_free;
    return Obstacle::device;
}

// "keep_free"; as traces and JSON answers spell it.
const char *obstacle_name(Obstacle obstacle) noexcept;
// "what others are to have free"; as people are told.
const char *obstacle_text(Obstacle obstacle) noexcept;
// None: there is no such obstacle.
std::optional<Obstacle> parse_obstacle(std::string_view name) noexcept;

}  // namespace curb::policy
