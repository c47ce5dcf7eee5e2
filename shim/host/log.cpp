// The log, by spdlog: a logger that is built directly and a sink that writes each line to a LogFile.
//
// Only here: no registry, no default logger, no thread, no static constructor. shim/CMakeLists.txt sets spdlog's
// macros, which leave out what would bring a formatter of patterns, floats and locales into the library.
#include "host/log.hpp"

#include <spdlog/logger.h>
#include <spdlog/sinks/sink.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "base/keep_errno.hpp"
#include "host/log_file.hpp"

namespace curb::shim::log {
namespace {

using policy::LogLevel;
using Record = spdlog::details::log_msg;

spdlog::level::level_enum spdlog_level(LogLevel level) noexcept {
    // spdlog has one more level, critical, between error and off.
    return level == LogLevel::off ? spdlog::level::off : static_cast<spdlog::level::level_enum>(level);
}
static_assert(static_cast<int>(LogLevel::trace) == SPDLOG_LEVEL_TRACE &&
              static_cast<int>(LogLevel::error) == SPDLOG_LEVEL_ERROR);

// Returns the local time, as in "2026-11-22 18:02:11.042 ".
std::string time_text(spdlog::log_clock::time_point time) {
    const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(time.time_since_epoch()).count();
    const auto seconds = static_cast<std::time_t>(ms / 1000);
    tm local{};
    localtime_r(&seconds, &local);
    char text[32];
    const std::size_t length = std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &local);
    std::snprintf(text + length, sizeof text - length, ".%03d ", static_cast<int>(ms % 1000));
    return text;
}

// Not spdlog's base_sink, whose formatter of patterns is 143 KB. A file gets the time and the level, stderr does not.
class LineSink final : public spdlog::sinks::sink {
  public:
    LineSink(LogFile file, bool to_stderr) : to_stderr_(to_stderr), file_(std::move(file)) {}

    void log(const Record &record) override {
        std::string line = to_stderr_ ? "" : time_text(record.time);
        line += "curb[" + std::to_string(getpid()) + "]";
        if (!to_stderr_) append(line.append(" "), spdlog::level::to_string_view(record.level));
        append(line.append(": "), record.payload).append("\n");
        const std::scoped_lock lock(writing_);
        file_.write(line);
    }
    void flush() override {}
    void set_pattern(const std::string & /*pattern*/) override {}
    void set_formatter(std::unique_ptr<spdlog::formatter> /*formatter*/) override {}

  private:
    static std::string &append(std::string &line, spdlog::string_view_t text) {
        return line.append(text.data(), text.size());
    }

    const bool to_stderr_;
    std::mutex writing_;
    LogFile file_;
};

// Never destroyed: another thread may still write through an older one, also during exit.
struct Logger {
    const Logger *older;
    policy::LogPolicy policy;
    spdlog::logger spdlog;
};
constinit struct {
    std::mutex mutex;  // for a thread that replaces the logger
    std::atomic<Logger *> logger{nullptr};
} current;

// The caller holds the lock.
Logger *make(const policy::LogPolicy &policy) {
    const std::string file = policy.file.value_or("");
    LogFile output;
    std::string error;
    if (!file.empty()) {
        if (auto opened = LogFile::open(with_pid(file)))
            output = std::move(opened).value();
        else
            error = opened.error();
    }
    auto sink = std::make_shared<LineSink>(std::move(output), file.empty() || !error.empty());
    auto *made = new Logger{current.logger.load(), policy, spdlog::logger("curb", std::move(sink))};
    made->spdlog.set_level(spdlog_level(policy.level.value_or(LogLevel::warning)));
    current.logger = made;
    if (!error.empty()) made->spdlog.warn("log.file: " + error + "; logging to stderr instead");
    return made;
}

spdlog::logger &logger() {
    if (Logger *now = current.logger.load()) return now->spdlog;
    const std::scoped_lock lock(current.mutex);
    Logger *now = current.logger.load();
    return (now ? now : make(policy::Policy().log))->spdlog;
}

}  // namespace

std::string with_pid(std::string path) {
    if (const auto at = path.find("%p"); at != std::string::npos) path.replace(at, 2, std::to_string(getpid()));
    return path;
}

void configure(const policy::LogPolicy &policy) noexcept try {
    const std::scoped_lock lock(current.mutex);
    const Logger *now = current.logger.load();
    if (!now || now->policy != policy) make(policy);
} catch (...) {
    // Out of host memory: keep the old logger.
}

bool enabled(LogLevel level) noexcept try { return logger().should_log(spdlog_level(level)); } catch (...) {
    return false;
}

void write(LogLevel level, std::string_view message) noexcept try {
    const KeepErrno keep_errno;
    logger().log(spdlog_level(level), spdlog::string_view_t(message.data(), message.size()));
} catch (...) {
    // Out of host memory: drop the message.
}

}  // namespace curb::shim::log
