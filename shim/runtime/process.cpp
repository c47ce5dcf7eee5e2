#include "process.hpp"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <mutex>
#include <new>
#include <optional>
#include <vector>

#include "admission.hpp"
#include "allocators.hpp"
#include "cache.hpp"
#include "devices.hpp"
#include "follow.hpp"
#include "keep_errno.hpp"
#include "last_thread.hpp"
#include "log.hpp"
#include "log_file.hpp"
#include "policy/fields.hpp"
#include "policy/names.hpp"
#include "reports.hpp"
#include "room.hpp"
#include "server.hpp"
#include "signals.hpp"
#include "steer.hpp"
#include "trace.hpp"
#include "unwinder.hpp"
#include "worker.hpp"

namespace curb::shim::process {

constinit std::atomic<detail::State> detail::state{State::asleep};

namespace {

using detail::State;
using detail::state;

constinit std::once_flag once;
constinit std::atomic<std::int64_t> began{0};
constinit std::atomic<const config::Source *> from{nullptr};

constexpr const char *kLowered = "cap lowered";

// CURB_POLICY as an absolute path, if the program was started with a relative one: by the first cuInit it may have
// changed its folder. Empty: as the environment has it.
constinit char policy_at_start[4096] = {};

void note_relative_policy() {
    const char *path = getenv("CURB_POLICY");
    if (!path || !*path || *path == '/' || !getcwd(policy_at_start, sizeof policy_at_start)) return;
    const std::size_t folder = strlen(policy_at_start), name = strlen(path);
    if (folder + 1 + name >= sizeof policy_at_start) {
        *policy_at_start = '\0';
        return;
    }
    policy_at_start[folder] = '/';
    memcpy(policy_at_start + folder + 1, path, name + 1);
}

const char *environment(const char *name) noexcept {
    return *policy_at_start && strcmp(name, "CURB_POLICY") == 0 ? policy_at_start : getenv(name);
}

// The one constructor: what has to happen before main.
__attribute__((constructor)) void at_load() {
    const KeepErrno keep_errno;
    log::look_at_stderr();
    last_thread::watch();
    note_relative_policy();
    steer::set_environment(environment);
}

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
    const config::Source &source = process::source();
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

void read_policy() {
    auto *source = new config::Source(config::locate(environment));
    from.store(source, std::memory_order_release);
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
    follow::cannot_be_used(loaded.error());
    for (const auto &diagnostic : loaded.error()) log::write(policy::LogLevel::error, diagnostic.text());
    log::write(policy::LogLevel::error,
               source->none()
                   ? "the machine's ceiling cannot be used, so every GPU allocation of this process is "
                     "refused until its administrator has mended it"
                   : "the policy cannot be used, so every GPU allocation of this process is refused. A mended "
                     "file is read at once; to run without a policy, unset CURB_POLICY and CURB_CAP");
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
    room::changed();
    bool over = false;
    for (int ordinal = 0; ordinal < devices::count() && !over; ++ordinal)
        over = admission::is_over_cap(devices::at(ordinal));
    const bool asked = over && worker::release({kLowered});
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

// Takes the signal that the policy in force names.
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

// In a fork child the locks may be held by threads that do not exist any more and the worker is gone. The driver
// answers CUDA_ERROR_NOT_INITIALIZED to everything there, so passing is right. Our state is left as it is, on purpose:
// a destructor could wait for one of those locks.
void in_fork_child() {
    const KeepErrno keep_errno;  // of fork; the program may have closed what is closed here
    state.store(State::passing, std::memory_order_relaxed);
    worker::in_fork_child();
    server::in_fork_child();
    trace::in_fork_child();
    signals::restore_program_action();
}

// Throws std::bad_alloc before anything has begun.
void begin() {
    began.store(control::unix_now(), std::memory_order_relaxed);
    last_thread::watch();  // in a child that another thread than its parent's first one has forked
    devices::discover();
    subject(false);
    allocators::read_environment();
    read_policy();
    if (pthread_atfork(nullptr, nullptr, in_fork_child) != 0) throw std::bad_alloc();
    state.store(State::active, std::memory_order_release);
    worker::start();
    take_signal();
}

}  // namespace

policy::Subject subject(bool with_user) {
    static policy::Subject &known = *new policy::Subject(config::this_process(false));
    static bool has_user = false;
    if (with_user && !has_user) known.users = config::this_process(true).users;
    has_user |= with_user;
    return known;
}

const config::Source &source() noexcept { return *from.load(std::memory_order_acquire); }

bool activate() noexcept {
    if (state.load(std::memory_order_acquire) != State::asleep) return true;
    const KeepErrno keep_errno;
    constexpr int kTries = 20;
    for (int tries = 0; tries < kTries; ++tries) {
        try {
            if (unwinder::load()) {
                std::call_once(once, begin);
                return true;
            }
        } catch (...) {
        }
        // Out of host memory, perhaps for a moment.
        const timespec moment{0, 1'000'000};
        nanosleep(&moment, nullptr);
    }
    if (unwinder::load())
        log::write(policy::LogLevel::error,
                   "out of host memory: the policy cannot be read, so the program cannot use CUDA now");
    else  // nothing that may throw, the log among it, can be run
        log::LogFile().write("curb: libgcc_s.so.1 cannot be loaded, so the program cannot use CUDA now\n");
    return false;
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

void settle(bool look_closely) noexcept try {
    cache::enforce();
    if (!look_closely) return;
    for (int ordinal = 0; ordinal < devices::count(); ++ordinal) {
        Device &device = devices::at(ordinal);
        if (!admission::cap(device)) continue;
        devices::reconcile(device);
        if (admission::is_over_cap(device)) {
            worker::release({kLowered});
            return;
        }
    }
} catch (...) {
    log::write(policy::LogLevel::error, "out of host memory: a release for a lower cap is not done");
}

void fall_back() noexcept try {
    for (const int ordinal : in_force::fall_back())
        reports::allowance(devices::at(ordinal), "falls back to", snapshot()->of(ordinal).allowance.bytes());
} catch (...) {
    log::write(policy::LogLevel::error, "out of host memory: the allowance stays as it is after a release");
}

}  // namespace curb::shim::process
