#include "server/status.hpp"

#include <unistd.h>

#include <algorithm>

#include "admission/reports.hpp"
#include "control/version_note.hpp"
#include "device/devices.hpp"
#include "device/wait_queue.hpp"
#include "driver/bypass.hpp"
#include "host/clock.hpp"
#include "nap/nap.hpp"
#include "nap/turns.hpp"
#include "policy/flags.hpp"
#include "policy/values/words.hpp"
#include "pools/pools.hpp"
#include "release/allocators.hpp"
#include "release/release.hpp"
#include "runtime/policy_watcher.hpp"
#include "runtime/runtime.hpp"
#include "trace/trace.hpp"

CURB_VERSION_NOTE(CURB_VERSION);

namespace curb::shim::status {
namespace {

control::PolicyStatus of_policy(const Version &version) {
    const config::Source &source = in_force::source();
    control::PolicyStatus out;
    out.file = source.file;
    out.cap = source.cap;
    out.flags = policy::joined(source.flags, " ", [](const auto &one) {
        return policy::flags()[static_cast<std::size_t>(one.first)].variable + ("=" + one.second);
    });
    const auto add = [&](const std::string &name, const std::string &value) {
        if (!value.empty()) out.flags += (out.flags.empty() ? "" : " ") + name + "=" + value;
    };
    add("CURB_SIGNAL", source.signal);
    if (version.policy.environment.value_or(true))
        for (const auto &[name, value] : source.handed_in) add(name, value);
    if (version.ceiling) out.ceiling = source.ceiling;
    out.rule = version.rule;
    out.unusable = version.unusable;
    out.since = version.since;
    out.error = policy_watcher::fault();
    return out;
}

std::vector<Bytes> of_pools(const Device &device) {
    constexpr std::size_t kMost = 256;  // for programs with very many pools
    std::vector<Bytes> out = pools::charges(device);
    std::sort(out.begin(), out.end(), std::greater<>());
    if (out.size() > kMost) out.resize(kMost);
    return out;
}

control::GpuStatus of_device(const Device &device, const Snapshot::Gpu &terms) {
    control::GpuStatus out;
    out.ordinal = device.ordinal;
    out.uuid = device.meter.uuid();
    if (device.meter.is_mig()) out.parent = device.meter.gpu_uuid();
    out.total = device.total;
    out.shares_host_memory = device.shares_host_memory;
    out.held = device.ledger.held();
    for (std::size_t kind = 0; kind < policy::kKinds; ++kind)
        out.kinds[kind] = device.ledger.of(static_cast<Kind>(kind));
    out.cached = device.kept.bytes;
    out.pools = of_pools(device);
    out.contexts = device.contexts.live;
    out.cap = terms.terms.cap;
    if (const Bytes allowance = terms.allowance.bytes(); allowance != policy::kUnbounded) out.allowance = allowance;
    out.job_cap = terms.terms.job_cap;
    out.job_held = device.ledger.share.held_by_all();
    out.live_cap = terms.live_cap;
    out.handed_in = terms.terms.handed_in;
    out.ceiling = terms.terms.ceiling;
    const Counts::Figures counts = device.counts.read();
    out.refused = counts.refused;
    out.waited = counts.waited;
    out.released = counts.released;
    return out;
}

control::Waiting of_wait(const wait_queue::Waiting &one, const Snapshot &in_force, control::UnixMs now) {
    const Snapshot::Gpu &gpu = in_force.of(one.request.ordinal);
    const policy::Growth &growth = gpu.terms.growth;
    control::Waiting out;
    out.gpu = one.request.ordinal;
    out.thread = one.thread;
    out.since = now - static_cast<control::UnixMs>(one.milliseconds);
    out.bytes = one.request.bytes;
    out.why = one.request.why;
    if (!reports::waits_for_turn(in_force.policy.suspend, out.why)) out.until = out.since + growth.wait.count();
    if (out.why == policy::Limit::allowance)
        out.step =
            now + static_cast<control::UnixMs>(policy::until_step(growth, now_ms(), gpu.allowance.last_step_ms()));
    return out;
}

void add_waits(control::Status &out, const Snapshot &in_force) {
    const control::UnixMs now = control::unix_now();
    for (const wait_queue::Waiting &one : wait_queue::waiting()) {
        ++out.gpus[static_cast<std::size_t>(one.request.ordinal)].waiting;
        if (out.waits.size() < control::kMostWaits) out.waits.push_back(of_wait(one, in_force, now));
    }
}

}  // namespace

control::Status now(const control::StatusRequest &asked) {
    const auto in_use = in_force::snapshot();
    const Snapshot &in_force = *in_use;  // one snapshot, so that all limits are consistent
    control::Status out;
    out.pid = getpid();
    out.version = CURB_VERSION;
    out.since = runtime::since();
    out.signal_trouble = runtime::signal_trouble();
    out.signal = out.signal_trouble.empty() ? runtime::release_signal() : "none";
    out.policy = of_policy(in_force.version);
    out.job = job::name();
    for (const Device &device : devices::all()) out.gpus.push_back(of_device(device, in_force.of(device.ordinal)));
    add_waits(out, in_force);
    out.trace = trace::status();
    out.nap = nap::status();
    out.turn = turns::status();
    out.releasing = release::is_running();
    out.refusals = reports::last_refusals();
    out.releases = release::history();
    if (asked.detail) {
        out.bypasses = bypasses();
        out.returns_nothing = allocators::returning_nothing();
    }
    return out;
}

}  // namespace curb::shim::status
