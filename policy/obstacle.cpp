#include "policy/obstacle.hpp"

namespace curb::policy {
namespace {

constexpr const char *kObstacleNames[] = {
#define CURB_OBSTACLE(name, text) #name,
#include "policy/obstacles.def"
};
constexpr const char *kObstacleTexts[] = {
#define CURB_OBSTACLE(name, text) text,
#include "policy/obstacles.def"
};

}  // namespace

const char *obstacle_name(Obstacle obstacle) noexcept { return kObstacleNames[static_cast<std::size_t>(obstacle)]; }
const char *obstacle_text(Obstacle obstacle) noexcept { return kObstacleTexts[static_cast<std::size_t>(obstacle)]; }

std::optional<Obstacle> parse_obstacle(std::string_view name) noexcept {
    for (std::size_t obstacle = 0; obstacle < kObstacles; ++obstacle)
        if (name == kObstacleNames[obstacle]) return static_cast<Obstacle>(obstacle);
    return std::nullopt;
}

}  // namespace curb::policy
