#include "runtime/runtime.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <new>
#include <optional>
#include <vector>

#include "accounting/reconcile.hpp"
#include "admission/reports.hpp"
#include "base/waiting.hpp"
#include "cache/cache.hpp"
#include "device/devices.hpp"
#include "device/wait_queue.hpp"
#include "host/log.hpp"
#include "limits/limits.hpp"
#include "policy/fields.hpp"
#include "policy/names.hpp"
#include "release/release.hpp"
#include "runtime/worker_queue.hpp"
#include "threads/signals.hpp"
#include "trace/trace.hpp"

namespace curb::shim::runtime {
namespace {

constinit struct {
    std::atomic<std::int64_t> since{0};
    // What has been logged.
    std::atomic<bool> job_trouble{false}, ignored_signal{false};
    std::atomic<signals::SignalState> signal_state{signals::SignalState::in_force};
} noted;

constexpr const char *kLowered = "cap lowered";

void log_all(const in_force::Lines &lines) {
    for (const in_force::Line &line : lines) log::write(line.level, line.text);
}

// Returns the process's name for the trace: the executable and its arguments.
std::string command() {
    const policy::Subject who = subject(false);
    return who.args.empty() ? who.exe : who.exe + " " + who.args;
}

// Returns the file of the policy in force.
const std::string &file_in_force() noexcept {
    const config::Source &source = in_force::source();
    return source.file.empty() ? source.ceiling : source.file;
}

// Traces the limits in force and their origin.
void trace_limits(const std::string &by) {
    if (!trace::on()) return;
    const auto now = in_force::snapshot();
    for (const Device &device : devices::all()) {
        const Snapshot::Gpu &gpu = now->of(device.ordinal);
        trace::policy(device, gpu.terms.cap, gpu.allowance.bytes(), by);
    }
}

// Has the trace follow the policy in force: begins it, ends it, or changes its file.
void update_trace() {
    const auto in_use = in_force::snapshot();
    const Version &now = in_use->version;
    trace::apply(now.policy.trace, command());
    trace_limits(now.rule.empty() ? file_in_force() : file_in_force() + ", " + now.rule);
}

// Tries again if a file exists but cannot be read: the process may have no free descriptor for a moment.
policy::Result<config::Loaded, config::Diagnostics> load_patiently(const config::Source &source) {
    constexpr int kTries = 5;
    for (int tries = 1;; ++tries) {
        auto loaded = config::load(source, subject);
        if (loaded || tries == kTries || config::is_for_want_of_memory(loaded.error()) ||
            std::none_of(loaded.error().begin(), loaded.error().end(), [](const auto &one) { return one.unread; }))
            return loaded;
        sleep_ms(5);
    }
}

void react_to_new_limits();

// On the thread curb-job.
void release_for_job(Bytes bytes, std::uint64_t request) noexcept try {
    const auto done = [request](const control::ReleaseReport & /*report*/) { job::answered(request); };
    if (gate::is_closed() || !release::ask({"another process of its job", {bytes, std::nullopt}, done}))
        job::answered(request);
} catch (...) {
    job::answered(request);  // out of host memory: nothing is released
}
void take_job_caps() noexcept try {
    if (!in_force::take_job_caps()) return;
    react_to_new_limits();
    trace_limits("curb cap --job");
} catch (...) {
    log::write(policy::LogLevel::error, "out of host memory: the new cap of the job is not in force here");
}

// If the policy caps a job, joins that job, once in the life of the process. If the job's ledger cannot be used,
// nothing is granted on devices with such a cap.
void join_job(const policy::Policy &policy) {
    if (!policy::has_job_cap(policy)) return;
    const std::string name = config::job_name(*policy.job.of, in_force::source());
    std::string fault = job::join(name, {.wanted = release_for_job, .caps_changed = take_job_caps});
    for (Device &device : devices::all())
        if (fault.empty() && !device.ledger.open_share(device.meter.uuid()))
            fault = "it has no room for " + device.name();
    if (noted.job_trouble.exchange(true)) return;
    if (!fault.empty())
        log::write(policy::LogLevel::error, "the ledger of the job \"" + name + "\" cannot be used: " + fault +
                                                ". GPU allocations under the job's cap are refused");
    else if (const auto other = config::other_user_of_tree(in_force::source());
             other && *policy.job.of == policy::JobOf::tree)
        log::write(policy::LogLevel::warning,
                   "the job \"" + name + "\" was begun by user " + std::to_string(*other) +
                       ", and this process runs as user " + std::to_string(geteuid()) +
                       ": the job's cap applies to the processes of each user apart. To cap them together, start "
                       "them as one user");
}

// Returns the differences between two policies, a line each.
std::vector<std::string> differences(const policy::Policy &before, const policy::Policy &now) {
    std::vector<std::string> out = policy::differences(before, now);
    policy::Layer ceiling_before, ceiling_now;
    ceiling_before.gpu = before.ceiling;
    ceiling_now.gpu = now.ceiling;
    for (const std::string &line : policy::differences(ceiling_before, ceiling_now)) out.push_back("ceiling: " + line);
    return out;
}

// Wakes waiting requests, and requests a release if the ledger shows a device above its cap. It joins a running
// release.
void react_to_new_limits() {
    wait_queue::changed();
    const auto all = devices::all();
    const bool asked = std::any_of(all.begin(), all.end(), limits::exceeds_cap) && release::ask({kLowered});
    worker::apply_with_driver(!asked);
}

// Returns why the signal does not request releases. Empty if it does, or should not.
std::string trouble_of(int signal, signals::SignalState signal_state) {
    const char *why = signal_state == signals::SignalState::ignored ? "the program ignores "
                      : signal_state == signals::SignalState::replaced
                          ? "the program bypassed curb and replaced the handler of "
                      : signal_state == signals::SignalState::refused ? "the system does not let curb have "
                                                                      : nullptr;
    return why ? why + policy::signal_name(signal) : "";
}

// Logs why the signal does not request releases, if that has changed.
void log_signal_state(int signal, signals::SignalState signal_state, policy::LogLevel level) noexcept try {
    if (noted.signal_state.exchange(signal_state) == signal_state) return;
    const std::string trouble = trouble_of(signal, signal_state);
    if (trouble.empty()) return;
    log::write(level, trouble +
                          ", which therefore asks for no release here; release.signal in the policy can name another "
                          "signal");
} catch (...) {
    // Out of host memory: no log line.
}

}  // namespace

policy::Result<config::Loaded, config::Diagnostics> begin(const char *(*environment)(const char *)) {
    noted.since = control::unix_now();
    subject(false);
    auto *source = new config::Source(config::locate(environment));
    in_force::set_source(source);
    auto loaded = load_patiently(*source);
    if (loaded) {
        log::configure(loaded->policy.log);
        join_job(loaded->policy);
        for (const std::string &why : loaded->ignored) log::write(policy::LogLevel::warning, why);
        if (!source->foreign.empty())
            log::write(policy::LogLevel::warning,
                       source->foreign + " is not used, because it belongs to another user; CURB_POLICY can name it");
        log_all(in_force::publish({loaded->policy, loaded->rule, loaded->ceiling, false, control::unix_now()}));
        update_trace();
        if (!loaded->rule.empty()) log::write(policy::LogLevel::info, source->file + ": " + loaded->rule + " applies");
        return loaded;
    }
    if (config::is_for_want_of_memory(loaded.error())) throw std::bad_alloc();
    log_all(in_force::publish({policy::Policy{}, "", false, true, control::unix_now()}));
    for (const auto &diagnostic : loaded.error()) log::write(policy::LogLevel::error, diagnostic.text());
    log::write(policy::LogLevel::error,
               !source->named && source->file.empty()
                   ? "the machine's ceiling cannot be used, so every GPU allocation of this process is "
                     "refused until its administrator fixes it"
                   : "the policy cannot be used, so every GPU allocation of this process is refused. A fixed "
                     "file is read at once; to run without a policy, unset the variables that begin with CURB_");
    return loaded;
}

void take_signal() noexcept {
    int signal = 0;
    signals::SignalState signal_state{};
    // Another thread may put a newer policy in force meanwhile: use its signal.
    do {
        signal = *in_force::snapshot()->policy.release.signal;
        signal_state = signals::use(signal);
    } while (signal != *in_force::snapshot()->policy.release.signal);
    log_signal_state(signal, signal_state, policy::LogLevel::warning);
}

policy::Subject subject(bool with_user) {
    static policy::Subject &known = *new policy::Subject(config::this_process(false));
    static bool has_user = false;
    if (with_user && !has_user) known.users = config::this_process(true).users;
    has_user |= with_user;
    return known;
}

std::int64_t since() noexcept { return noted.since; }

std::string release_signal() { return policy::signal_name(*in_force::snapshot()->policy.release.signal); }

std::string signal_trouble() {
    const int signal = *in_force::snapshot()->policy.release.signal;
    return trouble_of(signal, signals::state_of(signal));
}

void check_signal() noexcept {
    const int signal = *in_force::snapshot()->policy.release.signal;
    const signals::SignalState signal_state = signals::state_of(signal);
    const bool again = signal_state == signals::SignalState::ignored && noted.ignored_signal.exchange(true);
    log_signal_state(signal, signal_state, again ? policy::LogLevel::info : policy::LogLevel::warning);
}

void enforce(const config::Loaded &loaded) {
    const std::vector<std::string> changes = differences(in_force::snapshot()->policy, loaded.policy);
    log::configure(loaded.policy.log);
    join_job(loaded.policy);
    const auto lines = in_force::publish({loaded.policy, loaded.rule, loaded.ceiling, false, control::unix_now()});
    react_to_new_limits();
    take_signal();
    try {
        update_trace();
        log_all(lines);
        // Warnings, which the default level shows: a user who edits limits wants to see that they hold.
        log::write(policy::LogLevel::warning,
                   file_in_force() + ": new policy in force" + (loaded.rule.empty() ? "" : ", " + loaded.rule));
        for (const std::string &line : changes) log::write(policy::LogLevel::warning, "  " + line);
    } catch (...) {
        log::write(policy::LogLevel::error, "out of host memory: some changes of the new policy are not logged");
    }
}

control::Reply enforce(const policy::GpuKey &key, std::optional<policy::Size> cap, bool of_job) noexcept try {
    const auto report = of_job ? in_force::set_job_cap(key, cap) : in_force::set_cap(key, cap);
    if (!report) return control::Failure{"process " + std::to_string(getpid()) + ": " + report.error().message};
    react_to_new_limits();
    trace_limits("curb cap");
    worker::log_later(reports::cap_text(*report, of_job));
    return *report;
} catch (...) {
    return control::Failure{"no host memory"};  // short enough to need none
}

void apply_with_driver(bool measure_if_stale) noexcept try {
    cache::enforce();
    if (!measure_if_stale) return;
    for (Device &device : devices::all()) {
        if (!limits::cap(device)) continue;
        reconcile(device);
        if (limits::exceeds_cap(device)) {
            release::ask({kLowered});
            return;
        }
    }
} catch (...) {
    log::write(policy::LogLevel::error, "out of host memory: no release for the lower cap");
}

}  // namespace curb::shim::runtime
