#include "process.hpp"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <vector>

#include "admission.hpp"
#include "devices.hpp"
#include "keep_errno.hpp"
#include "log.hpp"
#include "signals.hpp"
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

// The one constructor. A program without CURB_POLICY, or with an absolute one, pays a look at its environment.
__attribute__((constructor)) void note_relative_policy() {
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

void publish(const policy::Policy &policy, bool unusable) {
    auto *next = new Snapshot;
    next->policy = policy;
    next->unusable = unusable;
    const auto gpus = identities(policy);
    const policy::Matched matched = policy::match(policy, gpus);
    bool some_without_cap = false;
    for (const policy::GpuIdentity &gpu : gpus) {
        Snapshot::Gpu &terms = next->gpus[static_cast<std::size_t>(gpu.ordinal)];
        terms.cap = policy::cap_for(matched.policy, gpu, devices::at(gpu.ordinal).total);
        terms.report_device = policy::gpu_policy_for(matched.policy, gpu).report == policy::Report::device;
        next->capped |= terms.cap.has_value();
        some_without_cap |= !terms.cap;
    }
    next->older = in_force.load(std::memory_order_acquire);
    in_force.store(next, std::memory_order_release);
    for (const std::string &why : matched.ambiguous) log::write(policy::LogLevel::warning, why);
    // One file may serve processes that see different devices. But a device that is left without a cap may be the one
    // that was meant.
    const auto level = some_without_cap ? policy::LogLevel::warning : policy::LogLevel::info;
    for (const std::string &why : matched.unmatched) log::write(level, why);
}

void read_policy() {
    auto *source = new config::Source(config::locate(environment));
    from.store(source, std::memory_order_release);
    const auto loaded = config::load(*source);
    if (loaded) {
        log::configure(loaded->log);
        publish(*loaded, false);
        return;
    }
    publish(policy::Policy{}, true);
    for (const auto &diagnostic : loaded.error()) log::write(policy::LogLevel::error, diagnostic.text());
    log::write(
        policy::LogLevel::error,
        "the policy cannot be used, so every GPU allocation of this process is refused. A mended file is read at once; "
        "to run without a policy, unset CURB_POLICY and CURB_CAP");
}

// In a fork child the locks may be held by threads that do not exist any more and the worker is gone. The driver
// answers CUDA_ERROR_NOT_INITIALIZED to everything there, so passing is right. Our state is left as it is, on purpose:
// a destructor could wait for one of those locks.
void in_fork_child() {
    state.store(State::passing, std::memory_order_relaxed);
    signals::restore_program_action();
}

}  // namespace

bool active() noexcept { return state.load(std::memory_order_acquire) == State::active; }

const Snapshot &snapshot() noexcept { return *in_force.load(std::memory_order_acquire); }

const config::Source &source() noexcept { return *from.load(std::memory_order_acquire); }

void activate() noexcept {
    if (state.load(std::memory_order_acquire) != State::asleep) return;
    const KeepErrno keep_errno;
    std::call_once(once, [] {
        try {
            devices::discover();
            read_policy();
            pthread_atfork(nullptr, nullptr, in_fork_child);
            state.store(State::active, std::memory_order_release);
            worker::start();
            signals::use(snapshot().policy.release.signal);
        } catch (...) {
            // Out of host memory while starting: the program goes on as without us, unless a cap was already in force.
            log::write(policy::LogLevel::error, "out of host memory while starting; caps may not be enforced");
        }
    });
}

void enforce(const policy::Policy &policy) noexcept try {
    log::configure(policy.log);
    publish(policy, false);
    signals::use(policy.release.signal);
    for (int ordinal = 0; ordinal < devices::count(); ++ordinal) {
        Device &device = devices::at(ordinal);
        const std::optional<Bytes> cap = admission::cap(device);
        if (!cap) continue;
        devices::reconcile(device);
        if (device.ledger.held() > *cap) worker::release("cap lowered");
    }
} catch (...) {
    log::write(policy::LogLevel::error, "out of host memory: the new policy is not in force");
}

}  // namespace curb::shim::process
