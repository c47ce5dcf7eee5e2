// The one file that includes spdlog. No registry and no background thread: a host program with its own spdlog must not
// meet ours, and a process may end at any moment.

#include "log.hpp"

#include <spdlog/logger.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <memory>
#include <mutex>

namespace curb::shim::log {
namespace {

constinit std::atomic<spdlog::logger *> current{nullptr};
constinit std::mutex configuring;

spdlog::level::level_enum level_of(policy::LogLevel level) noexcept {
    switch (level) {
        case policy::LogLevel::trace: return spdlog::level::trace;
        case policy::LogLevel::debug: return spdlog::level::debug;
        case policy::LogLevel::info: return spdlog::level::info;
        case policy::LogLevel::warning: return spdlog::level::warn;
        case policy::LogLevel::error: return spdlog::level::err;
        case policy::LogLevel::off: break;
    }
    return spdlog::level::off;
}

std::string with_pid(std::string path) {
    if (const auto at = path.find("%p"); at != std::string::npos) path.replace(at, 2, std::to_string(getpid()));
    return path;
}

// Loggers are leaked: another thread may be writing through the old one, and at exit there is no moment after which
// nobody writes.
spdlog::logger *make(const policy::LogPolicy &policy) {
    spdlog::sink_ptr sink;
    std::string trouble;
    const std::string file = policy.file.value_or("");
    if (file.empty()) {
        sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
    } else {
        try {
            sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(with_pid(file));
        } catch (const spdlog::spdlog_ex &error) {
            trouble = error.what();
            sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
        }
    }
    auto *logger = new spdlog::logger("curb", std::move(sink));
    logger->set_pattern(file.empty() ? "curb[%P]: %v" : "%Y-%m-%d %H:%M:%S.%e curb[%P] %l: %v");
    logger->set_level(level_of(policy.level.value_or(policy::LogLevel::warning)));
    logger->flush_on(spdlog::level::trace);
    logger->set_error_handler([](const std::string &) {});  // a full disk is not the program's trouble
    if (!trouble.empty()) logger->warn("log.file: {}; logging to stderr instead", trouble);
    return logger;
}

spdlog::logger *logger() {
    if (spdlog::logger *made = current.load(std::memory_order_acquire)) return made;
    const std::scoped_lock lock(configuring);
    if (!current.load(std::memory_order_acquire)) current.store(make(policy::LogPolicy{}), std::memory_order_release);
    return current.load(std::memory_order_acquire);
}

}  // namespace

void configure(const policy::LogPolicy &policy) noexcept try {
    static policy::LogPolicy in_force;
    const std::scoped_lock lock(configuring);
    if (current.load(std::memory_order_acquire) && policy == in_force) return;
    in_force = policy;
    current.store(make(policy), std::memory_order_release);
} catch (...) {
    // Out of host memory: the old logger stays.
}

bool enabled(policy::LogLevel level) noexcept try { return logger()->should_log(level_of(level)); } catch (...) {
    return false;
}

void write(policy::LogLevel level, std::string_view message) noexcept try {
    const int saved_errno = errno;
    logger()->log(level_of(level), spdlog::string_view_t(message.data(), message.size()));
    errno = saved_errno;
} catch (...) {
    // Nothing that curb has to say is worth more than the program's run.
}

}  // namespace curb::shim::log
