#include "policy/names.hpp"

#include <signal.h>

#include <array>
#include <charconv>
#include <optional>
#include <span>
#include <vector>

#include "policy/words.hpp"

namespace curb::policy {
namespace {

struct Signal {
    std::string_view name;
    int number;
};

// Signals that a program can do without: their default action is to do nothing, to end a program that did not ask for
// them, or to reload. The rest mean a fault, a job's end or a child's, and would be taken from the program.
constexpr std::array<Signal, 8> kSignals{{{"SIGUSR1", SIGUSR1},
                                          {"SIGUSR2", SIGUSR2},
                                          {"SIGHUP", SIGHUP},
                                          {"SIGWINCH", SIGWINCH},
                                          {"SIGURG", SIGURG},
                                          {"SIGIO", SIGIO},
                                          {"SIGPWR", SIGPWR},
                                          {"SIGXCPU", SIGXCPU}}};
constexpr std::array<std::string_view, 17> kUnsuitable{"SIGKILL", "SIGSTOP", "SIGTERM", "SIGINT",  "SIGQUIT", "SIGSEGV",
                                                       "SIGBUS",  "SIGFPE",  "SIGILL",  "SIGTRAP", "SIGABRT", "SIGSYS",
                                                       "SIGCHLD", "SIGPIPE", "SIGALRM", "SIGCONT", "SIGTSTP"};
constexpr std::string_view kRealTime = "SIGRTMIN";
constexpr std::string_view kSignalRight = R"("SIGUSR1", "SIGUSR2", "SIGHUP", "SIGWINCH", "SIGRTMIN+3" or "none")";

// A decimal number without sign, blanks or leading zeros.
std::optional<int> ordinal(std::string_view digits) {
    if (digits.empty() || (digits.size() > 1 && digits.front() == '0')) return std::nullopt;
    if (digits.find_first_not_of("0123456789") != std::string_view::npos) return std::nullopt;
    int value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    return error == std::errc() ? std::optional(value) : std::nullopt;
}

// `'warn' is not a log level; did you mean "warning"?`
std::string no_such(std::string_view what, std::string_view word, std::span<const std::string_view> candidates) {
    std::string message = quote(word) + " is not a " + std::string(what);
    if (const std::string_view near = nearest(word, candidates); !near.empty()) {
        return message + "; did you mean " + quote(near, '"') + "?";
    }
    message += "; write one of";
    std::string_view separator = " ";
    for (const std::string_view candidate : candidates) {
        message.append(separator).append(quote(candidate, '"'));
        separator = ", ";
    }
    return message;
}

Result<int, std::string> parse_real_time(std::string_view name) {
    const std::string_view rest = name.substr(kRealTime.size());
    const int most = SIGRTMAX - SIGRTMIN;
    const auto above = rest.empty() ? std::optional(0) : rest.front() == '+' ? ordinal(rest.substr(1)) : std::nullopt;
    if (above && *above <= most) return SIGRTMIN + *above;
    return quote(name) + " is not a signal; real-time signals are \"SIGRTMIN\" to \"SIGRTMIN+" + std::to_string(most) +
           "\"";
}

}  // namespace

Result<int, std::string> parse_signal(std::string_view name) {
    if (name == "none") return 0;
    if (name.starts_with(kRealTime)) return parse_real_time(name);
    std::array<std::string_view, kSignals.size() + 2> candidates{"none", kRealTime};
    for (std::size_t i = 0; i < kSignals.size(); ++i) {
        if (name == kSignals[i].name) return kSignals[i].number;
        candidates[i + 2] = kSignals[i].name;
    }
    for (const std::string_view unsuitable : kUnsuitable) {
        if (name == unsuitable) {
            return quote(name) + " means something else to programs and cannot ask for a release; write " +
                   std::string(kSignalRight);
        }
    }
    std::string_view near = nearest(name, candidates);
    for (const Signal &signal : kSignals) {
        if (name == signal.name.substr(3)) near = signal.name;  // "USR1"
    }
    if (!near.empty()) return quote(name) + " is not a signal; did you mean " + quote(near, '"') + "?";
    return quote(name) + " is not a signal; write " + std::string(kSignalRight);
}

std::string signal_name(int signal) {
    if (signal == 0) return "none";
    for (const Signal &known : kSignals) {
        if (signal == known.number) return std::string(known.name);
    }
    if (signal == SIGRTMIN) return std::string(kRealTime);
    if (signal > SIGRTMIN && signal <= SIGRTMAX)
        return std::string(kRealTime) + "+" + std::to_string(signal - SIGRTMIN);
    return "signal " + std::to_string(signal);
}

Result<Step, std::string> parse_step(std::string_view name) {
    constexpr std::string_view kNames[] = {
#define CURB_STEP(name, text) #name,
#include "policy/release_steps.def"
#undef CURB_STEP
    };
    for (std::size_t i = 0; i < std::size(kNames); ++i) {
        if (name == kNames[i]) return static_cast<Step>(i);
    }
    return no_such("release step", name, kNames);
}

Result<LogLevel, std::string> parse_log_level(std::string_view name) {
    std::vector<std::string_view> names;
    for (int level = 0; level <= static_cast<int>(LogLevel::off); ++level) {
        names.emplace_back(log_level_name(static_cast<LogLevel>(level)));
        if (name == names.back()) return static_cast<LogLevel>(level);
    }
    return no_such("log level", name, names);
}

Result<GpuKey, std::string> parse_gpu_key(std::string_view key) {
    constexpr std::string_view kCuda = "cuda:";
    if (key == "*") return GpuKey{};
    if (key.starts_with(kCuda)) {
        if (const auto number = ordinal(key.substr(kCuda.size()))) return GpuKey{*number};
    }
    constexpr std::string_view kRight =
        R"(the keys are "*" (every device) and "cuda:0", "cuda:1" and so on (this process's devices))";
    for (const std::string_view later : {"nvml:", "GPU-", "MIG-"}) {
        if (key.starts_with(later))
            return quote(key, '"') + " names a device in a way that is not supported yet; " + std::string(kRight);
    }
    // "cuda:00", "CUDA:0", "gpu:0", "cuda0" and "0" all mean one ordinal.
    const std::size_t first = key.find_first_of("0123456789");
    if (first != std::string_view::npos) {
        std::string_view digits = key.substr(first);
        while (digits.size() > 1 && digits.front() == '0') digits.remove_prefix(1);
        const std::string_view before = key.substr(0, first);
        const bool kind =
            before.empty() || nearest(before, std::array<std::string_view, 3>{"cuda:", "cuda", "gpu:"}) != "";
        if (kind && ordinal(digits) && before.find('-') == std::string_view::npos) {
            return quote(key, '"') + " is not a device; did you mean \"cuda:" + std::string(digits) + "\"?";
        }
    }
    return quote(key, '"') + " is not a device; " + std::string(kRight);
}

}  // namespace curb::policy
