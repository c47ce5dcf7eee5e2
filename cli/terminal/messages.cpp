#include "terminal/messages.hpp"

#include <spdlog/logger.h>
#include <spdlog/sinks/sink.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>

#include "policy/flags.hpp"
#include "terminal/terminal.hpp"

namespace curb::cli::say {
namespace {

using spdlog::level::level_enum;

class StderrSink final : public spdlog::sinks::sink {
  public:
    void log(const spdlog::details::log_msg &record) override {
        // In one piece, because other processes may write to the same terminal.
        const std::string text = plain_lines({record.payload.data(), record.payload.size()}, "curb: ") + "\n";
        std::fwrite(text.data(), 1, text.size(), stderr);
    }
    void flush() override {}
    void set_pattern(const std::string & /*pattern*/) override {}
    void set_formatter(std::unique_ptr<spdlog::formatter> /*formatter*/) override {}
};

// Returns the level of CURB_LOG. Info if it is unset or cannot be read: `curb run` reports that.
level_enum level_of_environment() {
    policy::Flags flags;
    const std::string text = variable("CURB_LOG");
    if (text.empty() || policy::read_flag(policy::Flag::log, text, flags)) return spdlog::level::info;
    const auto level = static_cast<level_enum>(flags.job.log.level.value_or(policy::LogLevel::info));
    return std::min(level, spdlog::level::err);  // a command never fails in silence
}

// Never destroyed: a thread that still runs at exit may log.
spdlog::logger &logger() {
    static auto &logger = []() -> spdlog::logger & {
        auto *made = new spdlog::logger("curb", std::make_shared<StderrSink>());
        made->set_level(level_of_environment());
        return *made;
    }();
    return logger;
}

void log(level_enum level, std::string_view message) noexcept try {
    logger().log(level, spdlog::string_view_t(message.data(), message.size()));
} catch (...) {
    // Out of host memory: drop the message.
}

void set_level(level_enum level) noexcept try { logger().set_level(level); } catch (...) {
    // Out of host memory: the level stays.
}

}  // namespace

void error(std::string_view message) noexcept { log(spdlog::level::err, message); }
void warning(std::string_view message) noexcept { log(spdlog::level::warn, message); }
void hint(std::string_view message) noexcept { log(spdlog::level::info, message); }
void detail(std::string_view message) noexcept { log(spdlog::level::debug, message); }

void only_errors() noexcept { set_level(spdlog::level::err); }
void all() noexcept { set_level(spdlog::level::debug); }

}  // namespace curb::cli::say
