#include "process.hpp"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "admission.hpp"
#include "cache.hpp"
#include "devices.hpp"
#include "keep_errno.hpp"
#include "log.hpp"
#include "policy/fields.hpp"
#include "policy/names.hpp"
#include "reports.hpp"
#include "room.hpp"
#include "server.hpp"
#include "signals.hpp"
#include "steer.hpp"
#include "worker.hpp"

namespace curb::shim::process {
namespace {

enum class State : int { asleep, active, passing };

constinit std::atomic<State> state{State::asleep};
constinit std::once_flag once;
constinit std::atomic<const Snapshot *> in_force{nullptr};
constinit std::atomic<const config::Source *> from{nullptr};

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
    note_relative_policy();
    steer::set_environment(environment);
}

std::vector<policy::GpuIdentity> identities(const policy::Policy &policy) {
    // nvidia-smi's index is only known by NVML, whose start takes 6 to 9 ms.
    const bool with_index = policy::needs_nvml_index(policy);
    std::vector<policy::GpuIdentity> gpus;
    for (int ordinal = 0; ordinal < devices::count(); ++ordinal) {
        Device &device = devices::at(ordinal);
        gpus.push_back({ordinal, with_index ? device.meter.index() : std::nullopt, device.pci.data(),
                        device.meter.gpu_uuid(), device.meter.mig_uuid()});
    }
    return gpus;
}

// The allowance goes on from that of the policy before.
void begin_allowance(const Snapshot::Gpu &gpu, const Snapshot *before, Device &device) noexcept {
    const policy::Growth &growth = gpu.terms.growth;
    if (!before) return gpu.allowance.begin(policy::first_allowance(growth), devices::now_ms());
    const Allowance &old = before->of(device.ordinal).allowance;
    gpu.allowance.begin(policy::after_edit(growth, old.bytes(), device.ledger.held()), old.last_step_ms());
}

void publish(const policy::Policy &policy, bool unusable) {
    auto made = std::make_unique<Snapshot>();
    Snapshot *next = made.get();
    next->policy = policy;
    next->unusable = unusable;
    next->older = in_force.load(std::memory_order_acquire);
    const auto gpus = identities(policy);
    next->gpus = std::make_unique<Snapshot::Gpu[]>(gpus.size());
    const policy::Matched own = policy::match(policy.gpu, gpus), ceiling = policy::match(policy.ceiling, gpus);
    policy::Policy applied = policy;
    applied.gpu = own.rules;
    applied.ceiling = ceiling.rules;
    bool some_without_cap = false;
    for (const policy::GpuIdentity &gpu : gpus) {
        Device &device = devices::at(gpu.ordinal);
        Snapshot::Gpu &mine = next->gpus[static_cast<std::size_t>(gpu.ordinal)];
        mine.terms = policy::terms_for(applied, gpu, device.total);
        begin_allowance(mine, next->older, device);
        next->limited |= mine.limited();
        next->caches |= mine.terms.cache.max != 0;
        some_without_cap |= !mine.terms.cap;
    }
    in_force.store(made.release(), std::memory_order_release);
    for (const std::string &why : own.ambiguous) log::write(policy::LogLevel::warning, why);
    for (const std::string &why : ceiling.ambiguous) log::write(policy::LogLevel::warning, "ceiling: " + why);
    // One file may serve processes that see different devices. But a device that is left without a cap may be the one
    // that was meant.
    const auto level = some_without_cap ? policy::LogLevel::warning : policy::LogLevel::info;
    for (const std::string &why : own.unmatched) log::write(level, why);
}

void read_policy() {
    auto *source = new config::Source(config::locate(environment));
    from.store(source, std::memory_order_release);
    const auto loaded = config::load(*source, subject);
    if (loaded) {
        log::configure(loaded->policy.log);
        publish(loaded->policy, false);
        if (!loaded->rule.empty()) log::write(policy::LogLevel::info, source->file + ": " + loaded->rule + " applies");
        for (const auto &note : loaded->notes) log::write(policy::LogLevel::info, note.text());
        return;
    }
    publish(policy::Policy{}, true);
    for (const auto &diagnostic : loaded.error()) log::write(policy::LogLevel::error, diagnostic.text());
    log::write(policy::LogLevel::error,
               source->none()
                   ? "the machine's ceiling cannot be used, so every GPU allocation of this process is "
                     "refused until its administrator has mended it"
                   : "the policy cannot be used, so every GPU allocation of this process is refused. A mended "
                     "file is read at once; to run without a policy, unset CURB_POLICY and CURB_CAP");
}

// The differences to the policy before, a line each.
void say_what_changed(const Snapshot &before, const config::Loaded &now) {
    const std::string &file = process::source().file;
    log::write(policy::LogLevel::info, (file.empty() ? process::source().ceiling : file) + ": new policy in force" +
                                           (now.rule.empty() ? "" : ", " + now.rule));
    for (const std::string &line : policy::differences(before.policy, now.policy))
        log::write(policy::LogLevel::info, "  " + line);
    policy::Layer ceiling_before, ceiling_now;
    ceiling_before.gpu = before.policy.ceiling;
    ceiling_now.gpu = now.policy.ceiling;
    for (const std::string &line : policy::differences(ceiling_before, ceiling_now))
        log::write(policy::LogLevel::info, "  ceiling: " + line);
    for (const auto &note : now.notes) log::write(policy::LogLevel::info, note.text());
}

constinit std::atomic<signals::Standing> said{signals::Standing::in_force};

// Takes the signal that the policy in force names, and says once why it asks for no release.
void take_signal() {
    int signal = 0;
    signals::Standing standing{};
    // The policy may be edited while the first one is put in force: whoever comes last sees the newer one.
    do {
        signal = *snapshot().policy.release.signal;
        standing = signals::use(signal);
    } while (signal != *snapshot().policy.release.signal);
    if (said.exchange(standing, std::memory_order_relaxed) == standing) return;
    const char *why = standing == signals::Standing::ignored    ? "the program ignores "
                      : standing == signals::Standing::replaced ? "the program has set past curb what it does on "
                      : standing == signals::Standing::refused  ? "the system does not let curb have "
                                                                : nullptr;
    if (!why) return;
    log::write(policy::LogLevel::warning, why + policy::signal_name(signal) +
                                              ", which therefore asks for no release here; release.signal in the "
                                              "policy can name another signal");
}

// In a fork child the locks may be held by threads that do not exist any more and the worker is gone. The driver
// answers CUDA_ERROR_NOT_INITIALIZED to everything there, so passing is right. Our state is left as it is, on purpose:
// a destructor could wait for one of those locks.
void in_fork_child() {
    state.store(State::passing, std::memory_order_relaxed);
    server::in_fork_child();
    signals::restore_program_action();
}

}  // namespace

bool active() noexcept { return state.load(std::memory_order_acquire) == State::active; }

const Snapshot &snapshot() noexcept { return *in_force.load(std::memory_order_acquire); }

policy::Subject subject(bool with_user) {
    static policy::Subject &known = *new policy::Subject(config::this_process(false));
    static bool has_user = false;
    if (with_user && !has_user) known.users = config::this_process(true).users;
    has_user |= with_user;
    return known;
}

const config::Source &source() noexcept { return *from.load(std::memory_order_acquire); }

void activate() noexcept {
    if (state.load(std::memory_order_acquire) != State::asleep) return;
    const KeepErrno keep_errno;
    std::call_once(once, [] {
        try {
            devices::discover();
            subject(false);
            read_policy();
            pthread_atfork(nullptr, nullptr, in_fork_child);
            state.store(State::active, std::memory_order_release);
            worker::start();
            take_signal();
        } catch (...) {
            // Out of host memory while starting: the program goes on as without us, unless a cap was already in force.
            log::write(policy::LogLevel::error, "out of host memory while starting; caps may not be enforced");
        }
    });
}

void enforce(const config::Loaded &loaded) noexcept try {
    const Snapshot &before = snapshot();
    log::configure(loaded.policy.log);
    publish(loaded.policy, false);
    take_signal();
    say_what_changed(before, loaded);
    cache::enforce();
    worker::look();
    room::changed();
    for (int ordinal = 0; ordinal < devices::count(); ++ordinal) {
        Device &device = devices::at(ordinal);
        const std::optional<Bytes> cap = snapshot().of(ordinal).terms.cap;
        if (!cap) continue;
        devices::reconcile(device);
        if (device.ledger.held() > *cap) worker::release({"cap lowered"});
    }
} catch (...) {
    log::write(policy::LogLevel::error, "out of host memory: the new policy is not in force");
}

void fall_back() noexcept {
    for (int ordinal = 0; ordinal < devices::count(); ++ordinal) {
        const Snapshot::Gpu &gpu = snapshot().of(ordinal);
        const Device &device = devices::at(ordinal);
        if (gpu.allowance.fall_back(gpu.terms.growth, device.ledger.held(), devices::now_ms()))
            reports::allowance(device, "falls back to", gpu.allowance.bytes());
    }
}

}  // namespace curb::shim::process
