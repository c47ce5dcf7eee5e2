#include "policy/policy.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace curb::policy {

const char *step_name(Step step) noexcept {
    switch (step) {
#define CURB_STEP(name, text) \
    case Step::name:          \
        return #name;
#include "policy/release_steps.def"
#undef CURB_STEP
    }
    return "?";
}

const char *log_level_name(LogLevel level) noexcept {
    switch (level) {
        case LogLevel::trace: return "trace";
        case LogLevel::debug: return "debug";
        case LogLevel::info: return "info";
        case LogLevel::warning: return "warning";
        case LogLevel::error: return "error";
        case LogLevel::off: return "off";
    }
    return "?";
}

namespace {

void lay_over(GpuPolicy &under, const GpuPolicy &over) {
    const auto &[cap, report] = over;  // every member: one that is not laid over below does not compile
    if (cap) under.cap = cap;
    if (report) under.report = report;
}

using Gpus = std::vector<const GpuIdentity *>;

// "(cuda:0 = GPU-…; cuda:1 = GPU-…)"
std::string listed(const Gpus &gpus) {
    std::string out;
    for (const GpuIdentity *gpu : gpus) out += (out.empty() ? " (" : "; ") + describe(*gpu);
    return out.empty() ? out : out + ")";
}

// Whether a key is the beginning of several UUIDs. MIG instances of one GPU share its UUID: a key for it is for them
// all.
bool ambiguous(const GpuKey &key, const Gpus &named) {
    if (key.kind < GpuKey::Kind::gpu_uuid) return false;
    const auto uuid = key.kind == GpuKey::Kind::gpu_uuid ? &GpuIdentity::gpu_uuid : &GpuIdentity::mig_uuid;
    return std::any_of(named.begin(), named.end(),
                       [&](const GpuIdentity *gpu) { return gpu->*uuid != named.front()->*uuid; });
}

}  // namespace

GpuPolicy gpu_policy_for(const Policy &policy, const GpuIdentity &gpu) {
    std::vector<const GpuRule *> rules;
    for (const GpuRule &rule : policy.gpu) {
        if (names(rule.key, gpu)) rules.push_back(&rule);
    }
    std::stable_sort(rules.begin(), rules.end(), [](const GpuRule *a, const GpuRule *b) {
        return std::pair(a->key.kind, a->key.text.size()) < std::pair(b->key.kind, b->key.text.size());
    });
    GpuPolicy out{{}, Report::cap};
    for (const GpuRule *rule : rules) lay_over(out, rule->policy);
    return out;
}

std::optional<Bytes> cap_for(const Policy &policy, const GpuIdentity &gpu, Bytes device_total) {
    std::optional<Bytes> bytes;
    if (const std::optional<Size> cap = gpu_policy_for(policy, gpu).cap) bytes = cap->on(device_total);
    if (policy.narrowed_to) {
        const Bytes narrowed = policy.narrowed_to->on(device_total);
        bytes = bytes ? std::min(*bytes, narrowed) : narrowed;
    }
    return bytes;
}

Matched match(const Policy &policy, std::span<const GpuIdentity> gpus) {
    Gpus all;
    for (const GpuIdentity &gpu : gpus) all.push_back(&gpu);
    Matched out{policy, {}, {}};
    out.policy.gpu.clear();
    for (const GpuRule &rule : policy.gpu) {
        Gpus named;
        std::copy_if(all.begin(), all.end(), std::back_inserter(named),
                     [&](const GpuIdentity *gpu) { return names(rule.key, *gpu); });
        const std::string shown = "gpu key \"" + gpu_key_text(rule.key) + "\"";
        if (ambiguous(rule.key, named)) {
            out.ambiguous.push_back(shown + " is the beginning of several UUIDs" + listed(named) +
                                    ", so its rule is not applied; write more of the one that is meant");
            continue;
        }
        out.policy.gpu.push_back(rule);
        if (!named.empty() || rule.key.kind == GpuKey::Kind::every) continue;
        const bool untold = rule.key.kind == GpuKey::Kind::nvml &&
                            std::any_of(gpus.begin(), gpus.end(), [](const auto &gpu) { return !gpu.nvml_index; });
        out.unmatched.push_back(shown + " names none of this process's GPUs" + listed(all) +
                                (untold ? "; NVML does not tell their indexes here" : ""));
    }
    return out;
}

bool needs_nvml_index(const Policy &policy) {
    return std::any_of(policy.gpu.begin(), policy.gpu.end(),
                       [](const GpuRule &rule) { return rule.key.kind == GpuKey::Kind::nvml; });
}

}  // namespace curb::policy
