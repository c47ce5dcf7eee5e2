#include "process.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <ctime>
#include <new>
#include <optional>
#include <vector>

#include "cache.hpp"
#include "devices.hpp"
#include "limits.hpp"
#include "log.hpp"
#include "policy/fields.hpp"
#include "policy/names.hpp"
#include "policy_watcher.hpp"
#include "queue.hpp"
#include "reconcile.hpp"
#include "reports.hpp"
#include "signals.hpp"
#include "trace.hpp"
#include "wait_queue.hpp"
#include "worker.hpp"

namespace curb::shim::process {
namespace {

constinit std::atomic<std::int64_t> began{0};

constexpr const char *kLowered = "cap lowered";

void say(const in_force::Lines &lines) {
    for (const in_force::Line &line : lines) log::write(line.level, line.text);
}

// What the trace of this process calls it: the program's file and its arguments.
std::string command() {
    const policy::Subject who = subject(false);
    return who.args.empty() ? who.exe : who.exe + " " + who.args;
}

// The file that the policy in force is from.
const std::string &file_in_force() noexcept {
    const config::Source &source = in_force::source();
    return source.file.empty() ? source.ceiling : source.file;
}

// The terms in force, with what has brought them.
void trace_terms(const std::string &by) {
    if (!trace::on()) return;
    const auto now = snapshot();
    for (int ordinal = 0; ordinal < devices::count(); ++ordinal) {
        const Snapshot::Gpu &gpu = now->of(ordinal);
        trace::policy(devices::at(ordinal), gpu.terms.cap, gpu.allowance.bytes(), by);
    }
}

// The policy in force says where to, from here on.
void follow_trace() {
    const auto in_use = snapshot();
    const Version &now = in_use->version;
    trace::follow(now.policy.trace, command());
    trace_terms(now.rule.empty() ? file_in_force() : file_in_force() + ", " + now.rule);
}

// A file that is there and cannot be read may be readable a moment later: the process may have had no descriptor left.
policy::Result<config::Loaded, config::Diagnostics> load_patiently(const config::Source &source) {
    constexpr int kTries = 5;
    for (int tries = 1;; ++tries) {
        auto loaded = config::load(source, subject);
        if (loaded || tries == kTries || config::is_for_want_of_memory(loaded.error()) ||
            std::none_of(loaded.error().begin(), loaded.error().end(), [](const auto &one) { return one.unread; }))
            return loaded;
        const timespec moment{0, 5'000'000};
        nanosleep(&moment, nullptr);
    }
}

// The differences to the policy before, a line each.
std::vector<std::string> differences(const policy::Policy &before, const policy::Policy &now) {
    std::vector<std::string> out = policy::differences(before, now);
    policy::Layer ceiling_before, ceiling_now;
    ceiling_before.gpu = before.ceiling;
    ceiling_now.gpu = now.ceiling;
    for (const std::string &line : policy::differences(ceiling_before, ceiling_now)) out.push_back("ceiling: " + line);
    return out;
}

void say_what_changed(const config::Loaded &now, const Changed &changed) {
    log::write(policy::LogLevel::info,
               file_in_force() + ": new policy in force" + (now.rule.empty() ? "" : ", " + now.rule));
    for (const std::string &line : changed.changes) log::write(policy::LogLevel::info, "  " + line);
}

// Whoever waits for room looks again. More held than a cap allows, as far as the books tell: it is released at once,
// also by a release that is under way.
void tell_of_new_terms() {
    wait_queue::changed();
    bool over = false;
    for (int ordinal = 0; ordinal < devices::count() && !over; ++ordinal)
        over = limits::exceeds_cap(devices::at(ordinal));
    const bool asked = over && release::ask({kLowered});
    worker::settle(!asked);
}

constinit std::atomic<signals::Standing> said{signals::Standing::in_force};

// Why the signal asks for no release; empty: it does, or it is not to.
std::string trouble_of(int signal, signals::Standing standing) {
    const char *why = standing == signals::Standing::ignored    ? "the program ignores "
                      : standing == signals::Standing::replaced ? "the program has set past curb what it does on "
                      : standing == signals::Standing::refused  ? "the system does not let curb have "
                                                                : nullptr;
    return why ? why + policy::signal_name(signal) : "";
}

// Logs why the signal asks for no release, if it did until now.
void log_standing(int signal, signals::Standing standing, policy::LogLevel level) noexcept try {
    if (said.exchange(standing, std::memory_order_relaxed) == standing) return;
    const std::string trouble = trouble_of(signal, standing);
    if (trouble.empty()) return;
    log::write(level, trouble +
                          ", which therefore asks for no release here; release.signal in the policy can name another "
                          "signal");
} catch (...) {
    // Out of host memory: the signal is as it is, and nothing is logged of it.
}

}  // namespace

void begin(const char *(*environment)(const char *)) {
    began.store(control::unix_now(), std::memory_order_relaxed);
    subject(false);
    auto *source = new config::Source(config::locate(environment));
    in_force::set_source(source);
    const auto loaded = load_patiently(*source);
    if (loaded) {
        log::configure(loaded->policy.log);
        if (!source->foreign.empty())
            log::write(policy::LogLevel::warning,
                       source->foreign + " is not used, because it belongs to another user; CURB_POLICY can name it");
        say(in_force::publish({loaded->policy, loaded->rule, loaded->ceiling, false, control::unix_now()}));
        follow_trace();
        if (!loaded->rule.empty()) log::write(policy::LogLevel::info, source->file + ": " + loaded->rule + " applies");
        return;
    }
    if (config::is_for_want_of_memory(loaded.error())) throw std::bad_alloc();
    say(in_force::publish({policy::Policy{}, "", false, true, control::unix_now()}));
    policy_watcher::cannot_be_used(loaded.error());
    for (const auto &diagnostic : loaded.error()) log::write(policy::LogLevel::error, diagnostic.text());
    log::write(policy::LogLevel::error,
               source->none()
                   ? "the machine's ceiling cannot be used, so every GPU allocation of this process is "
                     "refused until its administrator has mended it"
                   : "the policy cannot be used, so every GPU allocation of this process is refused. A mended "
                     "file is read at once; to run without a policy, unset CURB_POLICY and CURB_CAP");
}

void take_signal() noexcept {
    int signal = 0;
    signals::Standing standing{};
    // The policy may be edited while the first one is put in force: whoever comes last sees the newer one.
    do {
        signal = *snapshot()->policy.release.signal;
        standing = signals::use(signal);
    } while (signal != *snapshot()->policy.release.signal);
    log_standing(signal, standing, policy::LogLevel::warning);
}

policy::Subject subject(bool with_user) {
    static policy::Subject &known = *new policy::Subject(config::this_process(false));
    static bool has_user = false;
    if (with_user && !has_user) known.users = config::this_process(true).users;
    has_user |= with_user;
    return known;
}

std::int64_t since() noexcept { return began.load(std::memory_order_relaxed); }

std::string release_signal() { return policy::signal_name(*snapshot()->policy.release.signal); }

std::string signal_trouble() {
    const int signal = *snapshot()->policy.release.signal;
    return trouble_of(signal, signals::stands(signal));
}

void signal_was_set() noexcept {
    const int signal = *snapshot()->policy.release.signal;
    static constinit std::atomic<bool> warned{false};
    const signals::Standing standing = signals::stands(signal);
    const bool again = standing == signals::Standing::ignored && warned.exchange(true, std::memory_order_relaxed);
    log_standing(signal, standing, again ? policy::LogLevel::info : policy::LogLevel::warning);
}

Changed enforce(const config::Loaded &loaded) {
    Changed out;
    out.changes = differences(snapshot()->policy, loaded.policy);
    log::configure(loaded.policy.log);
    const auto lines = in_force::publish({loaded.policy, loaded.rule, loaded.ceiling, false, control::unix_now()});
    tell_of_new_terms();
    take_signal();
    try {
        follow_trace();
        for (const auto &line : lines) out.notes.push_back(line.text);
        say(lines);
        say_what_changed(loaded, out);
    } catch (...) {
        log::write(policy::LogLevel::error, "out of host memory: not all that the new policy changes is told");
    }
    return out;
}

control::Reply enforce(const policy::GpuKey &key, std::optional<policy::Size> cap) noexcept try {
    const auto report = in_force::set_cap(key, cap);
    if (!report) return control::Failure{"process " + std::to_string(getpid()) + ": " + report.error().message};
    tell_of_new_terms();
    trace_terms("curb cap");
    worker::say(reports::cap_text(*report));
    return *report;
} catch (...) {
    return control::Failure{"no host memory"};  // short enough to need none
}

void settle(bool measure_if_stale) noexcept try {
    cache::enforce();
    if (!measure_if_stale) return;
    for (int ordinal = 0; ordinal < devices::count(); ++ordinal) {
        Device &device = devices::at(ordinal);
        if (!limits::cap(device)) continue;
        reconcile(device);
        if (limits::exceeds_cap(device)) {
            release::ask({kLowered});
            return;
        }
    }
} catch (...) {
    log::write(policy::LogLevel::error, "out of host memory: a release for a lower cap is not done");
}

}  // namespace curb::shim::process
