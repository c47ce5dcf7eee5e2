// The only file that includes spdlog. It uses neither spdlog's registry, which a program with its own spdlog would
// share, nor its background thread, because the process may end at any moment.

#include "log.hpp"

#include <spdlog/logger.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <utility>

#include "keep_errno.hpp"
#include "log_file.hpp"

namespace curb::shim::log {
namespace {

class Sink final : public spdlog::sinks::base_sink<std::mutex> {
  public:
    explicit Sink(LogFile file) : file_(std::move(file)) {}

  private:
    void sink_it_(const spdlog::details::log_msg &message) override {
        spdlog::memory_buf_t line;
        formatter_->format(message, line);
        file_.write({line.data(), line.size()});
    }
    void flush_() override {}

    LogFile file_;
};

// Loggers are never destroyed: another thread may still write through an older one, also during exit.
struct Configured {
    const Configured *older;
    policy::LogPolicy policy;
    spdlog::logger logger;
};
constinit std::atomic<Configured *> current{nullptr};
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

// The caller holds the lock.
Configured *make(const policy::LogPolicy &policy) {
    const std::string file = policy.file.value_or("");
    LogFile output;
    std::string error;
    if (!file.empty()) {
        if (auto opened = LogFile::open(with_pid(file)))
            output = std::move(opened).value();
        else
            error = opened.error();
    }
    const bool to_stderr = file.empty() || !error.empty();
    auto *made = new Configured{current.load(std::memory_order_acquire), policy,
                                spdlog::logger("curb", std::make_shared<Sink>(std::move(output)))};
    spdlog::logger &logger = made->logger;
    logger.set_pattern(to_stderr ? "curb[%P]: %v" : "%Y-%m-%d %H:%M:%S.%e curb[%P] %l: %v");
    logger.set_level(level_of(policy.level.value_or(policy::LogLevel::warning)));
    logger.set_error_handler([](const std::string &) {});  // ignore errors such as a full disk
    if (!error.empty()) logger.warn("log.file: {}; logging to stderr instead", error);
    current.store(made, std::memory_order_release);
    return made;
}

spdlog::logger &logger() {
    if (Configured *now = current.load(std::memory_order_acquire)) return now->logger;
    const std::scoped_lock lock(configuring);
    Configured *now = current.load(std::memory_order_acquire);
    return (now ? now : make(policy::Policy().log))->logger;
}

}  // namespace

void configure(const policy::LogPolicy &policy) noexcept try {
    const std::scoped_lock lock(configuring);
    const Configured *now = current.load(std::memory_order_acquire);
    if (!now || now->policy != policy) make(policy);
} catch (...) {
    // Out of host memory: keep the old logger.
}

bool enabled(policy::LogLevel level) noexcept try { return logger().should_log(level_of(level)); } catch (...) {
    return false;
}

void write(policy::LogLevel level, std::string_view message) noexcept try {
    const KeepErrno keep_errno;
    logger().log(level_of(level), spdlog::string_view_t(message.data(), message.size()));
} catch (...) {
    // Out of host memory: drop the message.
}

}  // namespace curb::shim::log
