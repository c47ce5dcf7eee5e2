#include "policy/names.hpp"

#include <signal.h>

#include <array>
#include <span>
#include <vector>

#include "policy/values/words.hpp"

namespace curb::policy {
namespace {

struct Signal {
    std::string_view name;
    int number;
};

// The signals that curb may use. All others report a fault, the end of a job or of a child, and belong to the program.
constexpr std::array<Signal, 8> kSignals{{{"SIGUSR1", SIGUSR1},
                                          {"SIGUSR2", SIGUSR2},
                                          {"SIGHUP", SIGHUP},
                                          {"SIGWINCH", SIGWINCH},
                                          {"SIGURG", SIGURG},
                                          {"SIGIO", SIGIO},
                                          {"SIGPWR", SIGPWR},
                                          {"SIGXCPU", SIGXCPU}}};
constexpr std::string_view kUnsuitable[] = {
    "SIGKILL", "SIGSTOP", "SIGTERM", "SIGINT",    "SIGQUIT", "SIGSEGV", "SIGBUS",   "SIGFPE",  "SIGILL",
    "SIGTRAP", "SIGABRT", "SIGIOT",  "SIGSYS",    "SIGCHLD", "SIGCLD",  "SIGPIPE",  "SIGALRM", "SIGCONT",
    "SIGTSTP", "SIGTTIN", "SIGTTOU", "SIGVTALRM", "SIGPROF", "SIGXFSZ", "SIGSTKFLT"};
constexpr std::string_view kRealTime = "SIGRTMIN";
constexpr std::string_view kFromTheEnd = "SIGRTMAX";
constexpr std::string_view kSignalRight = R"("SIGUSR1", "SIGUSR2", "SIGHUP", "SIGWINCH", "SIGRTMIN+3" or "none")";

// `'warn' is not a log level; did you mean "warning"?`
std::string no_such(std::string_view what, std::string_view word, std::span<const std::string_view> candidates) {
    std::string message = quote(word) + " is not a " + std::string(what);
    if (const std::string_view near = nearest(word, candidates); !near.empty()) {
        return message + "; did you mean " + quote(near, '"') + "?";
    }
    return message + "; write one of " + joined(candidates, ", ", [](std::string_view one) { return quote(one, '"'); });
}

// Returns the one of `count` values to which `name_of` gives this name.
template <class Enum>
Result<Enum, std::string> parse_named(std::string_view what, std::string_view name, std::size_t count,
                                      const char *(*name_of)(Enum) noexcept) {
    std::vector<std::string_view> names;
    for (std::size_t i = 0; i < count; ++i) {
        names.emplace_back(name_of(static_cast<Enum>(i)));
        if (name == names.back()) return static_cast<Enum>(i);
    }
    return no_such(what, name, names);
}

std::string real_time_name(int signal) {
    const std::string name(kRealTime);
    return signal == SIGRTMIN ? name : name + "+" + std::to_string(signal - SIGRTMIN);
}

Result<int, std::string> parse_real_time(std::string_view name) {
    const std::string_view rest = name.substr(kRealTime.size());
    const int most = SIGRTMAX - SIGRTMIN;
    int above = rest.empty() ? 0 : -1;
    if (rest.starts_with('+')) above = whole_number(rest.substr(1)).value_or(-1);
    if (above >= 0 && above <= most) return SIGRTMIN + above;
    return quote(name) + " is not a signal; real-time signals are \"SIGRTMIN\" to " +
           quote(real_time_name(SIGRTMAX), '"');
}

// Returns the error for "SIGRTMAX-2", as shells list signals, with the name that curb reads.
std::string from_the_end(std::string_view name) {
    const std::string_view rest = name.substr(kFromTheEnd.size());
    int below = rest.empty() ? 0 : -1;
    if (rest.starts_with('-')) below = whole_number(rest.substr(1)).value_or(-1);
    const bool known = below >= 0 && below <= SIGRTMAX - SIGRTMIN;
    return quote(name) + " counts from the end; write " +
           (known ? quote(real_time_name(SIGRTMAX - below), '"')
                  : quote(kRealTime, '"') + " to " + quote(real_time_name(SIGRTMAX), '"'));
}

}  // namespace

Result<int, std::string> parse_signal(std::string_view name) {
    if (name == "none") return 0;
    if (name.starts_with(kRealTime)) return parse_real_time(name);
    if (name.starts_with(kFromTheEnd)) return from_the_end(name);
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
    if (name == "SIGPOLL") near = "SIGIO";  // two names of one signal
    if (!near.empty()) return quote(name) + " is not a signal; did you mean " + quote(near, '"') + "?";
    return quote(name) + " is not a signal; write " + std::string(kSignalRight);
}

std::string signal_name(int signal) {
    if (signal == 0) return "none";
    for (const Signal &known : kSignals) {
        if (signal == known.number) return std::string(known.name);
    }
    if (signal >= SIGRTMIN && signal <= SIGRTMAX) return real_time_name(signal);
    return "signal " + std::to_string(signal);
}

Result<Step, std::string> parse_step(std::string_view name) {
    return parse_named("release step", name, kSteps, step_name);
}

Result<LogLevel, std::string> parse_log_level(std::string_view name) {
    return parse_named("log level", name, static_cast<std::size_t>(LogLevel::off) + 1, log_level_name);
}

const char *report_name(Report report) noexcept { return report == Report::cap ? "cap" : "device"; }

Result<Report, std::string> parse_report(std::string_view name) {
    return parse_named("kind of report", name, static_cast<std::size_t>(Report::device) + 1, report_name);
}

const char *job_of_name(JobOf of) noexcept {
    constexpr std::array<const char *, 4> kNames{"tree", "cgroup", "slurm", "user"};
    return kNames[static_cast<std::size_t>(of)];
}

Result<JobOf, std::string> parse_job_of(std::string_view name) {
    return parse_named("kind of job", name, static_cast<std::size_t>(JobOf::user) + 1, job_of_name);
}

const char *share_name(Share share) noexcept {
    constexpr std::array<const char *, 3> kNames{"all", "order", "none"};
    return kNames[static_cast<std::size_t>(share)];
}

Result<Share, std::string> parse_share(std::string_view name) {
    return parse_named("kind of share", name, static_cast<std::size_t>(Share::none) + 1, share_name);
}

}  // namespace curb::policy
