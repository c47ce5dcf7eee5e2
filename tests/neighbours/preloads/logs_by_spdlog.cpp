// A library that logs by its own spdlog: another build than curb's, with a registry, a formatter of patterns and
// exceptions, and every name of spdlog and fmt visible.
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <sstream>

#include "preload.hpp"

// The name by which a host finds that a library with definitions like curb's is there.
EXPORT const int neighbour_foreign_definitions = 1;

namespace {

std::ostringstream &lines() {
    static auto &lines = *new std::ostringstream;
    return lines;
}

// Never destroyed: the registry, which has it too, is gone before at_end().
spdlog::logger &logger() {
    static auto &logger =
        *new auto(std::make_shared<spdlog::logger>("host", std::make_shared<spdlog::sinks::ostream_sink_mt>(lines())));
    return *logger;
}

__attribute__((constructor)) void at_start() {
    spdlog::set_default_logger(std::shared_ptr<spdlog::logger>(&logger(), [](spdlog::logger *) {}));
    spdlog::set_pattern("%l of %n: %v");
    spdlog::warn("starts with {:.1f}", 0.5);
}

__attribute__((destructor)) void at_end() {
    logger().error("ends");
    mark("logs_by_spdlog", lines().str() == "warning of host: starts with 0.5\nerror of host: ends\n" ? 2 : 0);
}

}  // namespace
