#include "log.hpp"

#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <ctime>
#include <mutex>
#include <string>
#include <utility>

#include "keep_errno.hpp"
#include "log_file.hpp"

namespace curb::shim::log {
namespace {

// Never destroyed: another thread may still write through an older one, also during exit.
struct Logger {
    const Logger *older;
    policy::LogPolicy policy;
    bool to_stderr;
    LogFile file;
    std::mutex writing{};

    [[nodiscard]] policy::LogLevel least() const noexcept { return policy.level.value_or(policy::LogLevel::warning); }
};
constinit std::atomic<Logger *> current{nullptr};
constinit std::mutex configuring;

// Returns the local time, as in "2026-11-22 18:02:11.042 ".
std::string now_text() {
    timeval now{};
    gettimeofday(&now, nullptr);
    tm local{};
    localtime_r(&now.tv_sec, &local);
    char text[32];
    const std::size_t length = std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &local);
    std::snprintf(text + length, sizeof text - length, ".%03d ", static_cast<int>(now.tv_usec / 1000));
    return text;
}

void write_line(Logger &logger, policy::LogLevel level, std::string_view message) {
    std::string line = logger.to_stderr ? "" : now_text();
    line += "curb[" + std::to_string(getpid()) + "]";
    if (!logger.to_stderr) line.append(" ").append(policy::log_level_name(level));
    line.append(": ").append(message).append("\n");
    const std::scoped_lock lock(logger.writing);
    logger.file.write(line);
}

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
    const bool to_stderr = file.empty() || !error.empty();
    auto *made = new Logger{current.load(std::memory_order_acquire), policy, to_stderr, std::move(output)};
    current.store(made, std::memory_order_release);
    if (!error.empty() && made->least() <= policy::LogLevel::warning)
        write_line(*made, policy::LogLevel::warning, "log.file: " + error + "; logging to stderr instead");
    return made;
}

Logger &logger() {
    if (Logger *now = current.load(std::memory_order_acquire)) return *now;
    const std::scoped_lock lock(configuring);
    Logger *now = current.load(std::memory_order_acquire);
    return *(now ? now : make(policy::Policy().log));
}

}  // namespace

std::string with_pid(std::string path) {
    if (const auto at = path.find("%p"); at != std::string::npos) path.replace(at, 2, std::to_string(getpid()));
    return path;
}

void configure(const policy::LogPolicy &policy) noexcept try {
    const std::scoped_lock lock(configuring);
    const Logger *now = current.load(std::memory_order_acquire);
    if (!now || now->policy != policy) make(policy);
} catch (...) {
    // Out of host memory: keep the old logger.
}

bool enabled(policy::LogLevel level) noexcept try { return level >= logger().least(); } catch (...) {
    return false;
}

void write(policy::LogLevel level, std::string_view message) noexcept try {
    const KeepErrno keep_errno;
    Logger &to = logger();
    if (level >= to.least()) write_line(to, level, message);
} catch (...) {
    // Out of host memory: drop the message.
}

}  // namespace curb::shim::log
