#include "policy/obstacle.hpp"

namespace curb::policy {
namespace {

constexpr const char *kNames[] = {
#define CURB_OBSTACLE(name, text) #name,
#include "policy/obstacles.def"
};
constexpr const char *kTexts[] = {
#define CURB_OBSTACLE(name, text) text,
#include "policy/obstacles.def"
};

}  // namespace

const char *obstacle_name(Obstacle obstacle) noexcept { return kNames[static_cast<std::size_t>(obstacle)]; }
const char *obstacle_text(Obstacle obstacle) noexcept { return kTexts[static_cast<std::size_t>(obstacle)]; }

std::optional<Obstacle> parse_obstacle(std::string_view name) noexcept {
    for (std::size_t obstacle = 0; obstacle < kObstacles; ++obstacle)
        if (name == kNames[obstacle]) return static_cast<Obstacle>(obstacle);
    return std::nullopt;
}

}  // namespace curb::policy
