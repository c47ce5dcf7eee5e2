#include "policy/policy.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <string>
#include <utility>

#include "policy/fields.hpp"
#include "policy/flags.hpp"
#include "policy/values/words.hpp"

namespace curb::policy {

namespace {

constexpr const char *kStepNames[] = {
#define CURB_STEP(name, ...) #name,
#include "policy/release_steps.def"
};

}  // namespace

const char *step_name(Step step) noexcept { return kStepNames[static_cast<std::size_t>(step)]; }

std::vector<Step> all_steps() {
    return {
#define CURB_STEP(name, ...) Step::name,
#include "policy/release_steps.def"
    };
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

template <class Value>
void lay(std::optional<Value> &under, const std::optional<Value> &over) {
    if (over) under = over;
}
void lay(std::optional<Environment> &under, const std::optional<Environment> &over) {
    if (!over) return;
    if (!under) under.emplace();
    for (const auto &[name, value] : *over) (*under)[name] = value;
}

void lay_over(GpuPolicy &under, const GpuPolicy &over) {
    if (over.growth.step) under.growth.factor.reset();
    if (over.growth.factor) under.growth.step.reset();
#define CURB_GPU_FIELD(pointer, type, member, least, fallback, holds, doc) lay(under.member, over.member);
#include "policy/fields.def"
}

// ---- a ceiling ----

// Converts sizes to bytes of one device, so that they can be compared.
template <class Value>
Value on_device(const Value &value, Bytes /*total*/) {
    return value;
}
Size on_device(const Size &size, Bytes total) { return {Size::Unit::bytes, size.on(total)}; }

bool below(const Size &a, const Size &b) { return a.amount < b.amount; }  // both in bytes
template <class Value>
bool below(const Value &a, const Value &b) {
    return a < b;
}

// Returns the value in force: the user's or the ceiling's, as `holds` says; if one is unset, the other.
template <class Value>
std::optional<Value> within(Holds holds, const std::optional<Value> &own, const std::optional<Value> &bound) {
    if (!own || !bound) return own ? own : bound;
    const bool bound_holds = holds == Holds::lower    ? below(*bound, *own)
                             : holds == Holds::higher ? below(*own, *bound)
                                                      : false;
    return bound_holds ? bound : own;
}

// The same for a field of the process. A share of the device or of the machine can be compared with bytes only once its
// whole is known. So `Policy` keeps the ceiling's sizes too, and the code that uses a size takes the lower one.
template <class Value>
std::optional<Value> of_process(Holds holds, const std::optional<Value> &own, const std::optional<Value> &bound) {
    return within(holds, own, bound);
}
std::optional<Size> of_process(Holds /*holds*/, const std::optional<Size> &own, const std::optional<Size> &bound) {
    return own ? own : bound;
}

template <class Value>
std::optional<Value> on_device(const std::optional<Value> &value, Bytes total) {
    return value ? std::optional<Value>(on_device(*value, total)) : std::nullopt;
}

// Returns the policy of one device limited by its ceiling, with sizes in bytes and defaults filled in.
GpuPolicy within(const GpuPolicy &own, const GpuPolicy &bound, Bytes total) {
    GpuPolicy out;
#define CURB_GPU_FIELD(pointer, type, member, least, fallback, holds, doc)                           \
    out.member = within(Holds::holds, on_device(own.member, total), on_device(bound.member, total)); \
    if (!out.member) out.member = fallback;
#include "policy/fields.def"
    return out;
}

// ---- keys ----

using Gpus = std::vector<const GpuIdentity *>;

// "(cuda:0 = GPU-…; cuda:1 = GPU-…)"
std::string listed(const Gpus &gpus) {
    if (gpus.empty()) return {};
    return " (" + joined(gpus, "; ", [](const GpuIdentity *gpu) { return describe(*gpu); }) + ")";
}

// True if a key is a prefix of several UUIDs. MIG instances of one GPU share its UUID, so that is one UUID.
bool ambiguous(const GpuKey &key, const Gpus &named) {
    if (key.kind < GpuKey::Kind::gpu_uuid) return false;
    const auto uuid = key.kind == GpuKey::Kind::gpu_uuid ? &GpuIdentity::gpu_uuid : &GpuIdentity::mig_uuid;
    return std::any_of(named.begin(), named.end(),
                       [&](const GpuIdentity *gpu) { return gpu->*uuid != named.front()->*uuid; });
}

}  // namespace

Policy::Policy() {
#define CURB_JOB_FIELD(pointer, type, member, least, fallback, holds, doc) member = fallback;
#include "policy/fields.def"
}

void lay_over(Layer &under, const Layer &over) {
    std::map<std::string, std::size_t> places;  // a file may name thousands of devices
    for (std::size_t i = 0; i < under.gpu.size() && !over.gpu.empty(); ++i)
        places.emplace(gpu_key_text(under.gpu[i].key), i);
    for (const GpuRule &rule : over.gpu) {
        const auto [place, fresh] = places.emplace(gpu_key_text(rule.key), under.gpu.size());
        if (fresh)
            under.gpu.push_back(rule);
        else
            lay_over(under.gpu[place->second].policy, rule.policy);
    }
#define CURB_JOB_FIELD(pointer, type, member, least, fallback, holds, doc) lay(under.member, over.member);
#include "policy/fields.def"
}

Policy in_force(const Layer &own, const Layer &ceiling, Narrowing narrowed_to) {
    Policy out;
    out.gpu = own.gpu;
    out.ceiling = ceiling.gpu;
    out.narrowed_to = std::move(narrowed_to.cap);
    out.job_caps = std::move(narrowed_to.job);
    if (own.job.cap) out.job_caps.push_back(*own.job.cap);
    out.job_ceiling = ceiling.job.cap;
    out.host_memory_ceiling = ceiling.suspend.host_memory;
    out.handed_in = std::move(narrowed_to.handed_in);
#define CURB_JOB_FIELD(pointer, type, member, least, fallback, holds, doc) \
    if (auto said = of_process(Holds::holds, own.member, ceiling.member)) out.member = std::move(said);
#include "policy/fields.def"
    return out;
}

std::vector<const GpuRule *> rules_naming(std::span<const GpuRule> rules, const GpuIdentity &gpu) {
    std::vector<const GpuRule *> named;
    for (const GpuRule &rule : rules) {
        if (names(rule.key, gpu)) named.push_back(&rule);
    }
    std::stable_sort(named.begin(), named.end(), [](const GpuRule *a, const GpuRule *b) {
        return std::pair(a->key.kind, a->key.text.size()) < std::pair(b->key.kind, b->key.text.size());
    });
    return named;
}

GpuPolicy gpu_policy_for(std::span<const GpuRule> rules, const GpuIdentity &gpu) {
    GpuPolicy out;
    for (const GpuRule *rule : rules_naming(rules, gpu)) lay_over(out, rule->policy);
    return out;
}

namespace {

// If nothing else caps the device: sets the cap that another system hands in, and growth that begins at its request for
// memory. Returns the variable of the cap; empty: none.
std::string lay_handed_in_under(GpuPolicy &own, const Policy &policy, const GpuIdentity &gpu) {
    if (own.cap || !policy.environment.value_or(true)) return {};
    const HandedInCap *lowest = nullptr;
    for (const HandedInCap &one : policy.handed_in.caps)
        if (names(one.cap.key, gpu) && (!lowest || one.cap.size.amount < lowest->cap.size.amount)) lowest = &one;
    if (lowest) own.cap = lowest->cap.size;
    const auto &request = policy.handed_in.request;
    if (request && !own.growth.start && (!own.cap || request->amount < own.cap->on(~Bytes{0}))) {
        // The other system promises only the request, so memory beyond it is taken in steps.
        own.growth.start = request;
        if (!own.growth.step && !own.growth.factor) own.growth.step = Size{Size::Unit::bytes, GiB};
    }
    return lowest ? lowest->variable : std::string();
}

// Sets the cap of the job: the lowest of those that the process has, or `live_cap`, within those of the ceiling.
// `own_cap`: of the device's own policy.
void set_job_cap(GpuTerms &out, const Policy &policy, const GpuIdentity &gpu, Bytes device_total,
                 const std::optional<Size> &own_cap, std::optional<Bytes> live_cap) {
    const auto lower = [&](std::optional<Bytes> least, const std::optional<Size> &other) {
        if (other) least = std::min(least.value_or(kUnbounded), other->on(device_total));
        return least;
    };
    const auto own = live_cap ? live_cap : lower(lowest_on(policy.job_caps, gpu, device_total), own_cap);
    const auto bound = lower(lower(std::nullopt, policy.job_ceiling), gpu_policy_for(policy.ceiling, gpu).job_cap);
    if (own || bound) out.job_cap = std::min(own.value_or(kUnbounded), bound.value_or(kUnbounded));
    out.job_ceiling = bound && bound < own.value_or(kUnbounded);
}

}  // namespace

GpuTerms terms_for(const Policy &policy, const GpuIdentity &gpu, Bytes device_total, std::optional<Size> live_cap,
                   std::optional<Bytes> live_job_cap) {
    GpuPolicy own = gpu_policy_for(policy.gpu, gpu);
    const auto by_variable = live_cap ? std::nullopt : lowest_on(policy.narrowed_to, gpu, device_total);
    const bool narrowed = by_variable && (!own.cap || *by_variable < own.cap->on(device_total));
    if (live_cap) own.cap = live_cap;
    if (narrowed) own.cap = Size{Size::Unit::bytes, *by_variable};
    const std::string handed_in = lay_handed_in_under(own, policy, gpu);
    GpuTerms out;
    out.fields = within(own, gpu_policy_for(policy.ceiling, gpu), device_total);
    const auto bytes = [](const std::optional<Size> &size) {
        return size ? std::optional<Bytes>(size->amount) : std::nullopt;
    };
    out.cap = bytes(out.fields.cap);
    out.ceiling = out.cap && (!own.cap || *out.cap < own.cap->on(device_total));
    if (!out.ceiling) out.handed_in = handed_in;
    out.narrowed = narrowed && !out.ceiling;
    set_job_cap(out, policy, gpu, device_total, own.job_cap, live_job_cap);
    const GrowthPolicy &growth = out.fields.growth;
    out.growth = {.start = bytes(growth.start),
                  .step = bytes(growth.step).value_or(0),
                  .factor = growth.factor.value_or(0),
                  .every = *growth.every,
                  .keep_free = bytes(growth.keep_free).value_or(0),
                  .wait = *growth.wait};
    const CachePolicy &cache = out.fields.cache;
    if (cache.max) out.cache = {.max = cache.max->amount, .idle = *cache.idle};
    return out;
}

Matched match(std::span<const GpuRule> rules, std::span<const GpuIdentity> gpus) {
    Gpus all;
    for (const GpuIdentity &gpu : gpus) all.push_back(&gpu);
    Matched out;
    for (const GpuRule &rule : rules) {
        Gpus named;
        std::copy_if(all.begin(), all.end(), std::back_inserter(named),
                     [&](const GpuIdentity *gpu) { return names(rule.key, *gpu); });
        const std::string shown = "gpu key \"" + gpu_key_text(rule.key) + "\"";
        if (ambiguous(rule.key, named)) {
            out.ambiguous.push_back(shown + " is the beginning of several UUIDs" + listed(named) +
                                    ", so its rule is not applied; write more of the one that is meant");
            continue;
        }
        out.rules.push_back(rule);
        if (!named.empty() || rule.key.kind == GpuKey::Kind::every) continue;
        const bool has_no_index =
            rule.key.kind == GpuKey::Kind::nvml &&
            std::any_of(gpus.begin(), gpus.end(), [](const auto &gpu) { return !gpu.nvml_index; });
        out.unmatched.push_back(shown + " names none of this process's GPUs" + listed(all) +
                                (has_no_index ? "; NVML does not report their indexes here" : ""));
    }
    return out;
}

bool has_job_cap(const Policy &policy) noexcept {
    const auto caps = [](const GpuRule &rule) { return rule.policy.job_cap.has_value(); };
    return !policy.job_caps.empty() || policy.job_ceiling || std::any_of(policy.gpu.begin(), policy.gpu.end(), caps) ||
           std::any_of(policy.ceiling.begin(), policy.ceiling.end(), caps);
}

bool needs_nvml_index(const Policy &policy) {
    const auto asks = [](const auto &one) { return one.key.kind == GpuKey::Kind::nvml; };
    const auto is_handed_in = [&](const HandedInCap &one) { return asks(one.cap); };
    return std::any_of(policy.gpu.begin(), policy.gpu.end(), asks) ||
           std::any_of(policy.ceiling.begin(), policy.ceiling.end(), asks) ||
           std::any_of(policy.narrowed_to.begin(), policy.narrowed_to.end(), asks) ||
           std::any_of(policy.job_caps.begin(), policy.job_caps.end(), asks) ||
           std::any_of(policy.handed_in.caps.begin(), policy.handed_in.caps.end(), is_handed_in);
}

namespace {

// Returns the conflicts of one rule. `merged`: with the rules for "*" under it. `starts_elsewhere`: the rule is for
// "*", and other rules set growth.start: then a step without start is no fault there.
std::vector<Conflict> conflicts_of(const GpuRule &rule, const GpuPolicy &merged, bool starts_elsewhere) {
    std::vector<Conflict> out;
    const auto complain = [&](const char *field, std::string message) {
        out.push_back({rule.key, field, std::move(message)});
    };
    const GrowthPolicy &growth = merged.growth, &own = rule.policy.growth;
    if (growth.start && !growth.step && !growth.factor)
        complain("growth/start", R"(the allowance would never grow; add "step" or "factor", or write "cap" instead)");
    if (!growth.start && !starts_elsewhere) {
        constexpr const char *kStart = R"(this has no effect without "start"; add where the allowance begins)";
        if (own.step) complain("growth/step", kStart);
        if (own.factor) complain("growth/factor", kStart);
        if (own.every) complain("growth/every", kStart);
    }
    if (growth.start && merged.cap && growth.start->unit == merged.cap->unit &&
        growth.start->amount > merged.cap->amount)
        complain("growth/start", "it begins above the cap: " + format(*growth.start) + " is more than " +
                                     format(*merged.cap) + "; write less, or leave the growth out");
    return out;
}

}  // namespace

std::vector<Conflict> conflicts(std::span<const GpuRule> rules) {
    const auto is_every = [](const auto &one) { return one.key.kind == GpuKey::Kind::every; };
    GpuPolicy every;
    bool some_start = false;
    for (const GpuRule &rule : rules) {
        if (is_every(rule)) lay_over(every, rule.policy);
        some_start |= rule.policy.growth.start.has_value();
    }
    std::vector<GpuRule> every_first(rules.begin(), rules.end());
    std::stable_partition(every_first.begin(), every_first.end(), is_every);
    std::vector<Conflict> out;
    for (const GpuRule &rule : every_first) {
        GpuPolicy merged = every;
        if (!is_every(rule)) lay_over(merged, rule.policy);
        for (Conflict &conflict : conflicts_of(rule, merged, is_every(rule) && some_start)) {
            // A conflict in "*" holds for every device; report it once.
            const bool said = std::any_of(out.begin(), out.end(), [&](const Conflict &one) {
                return is_every(one) && one.field == conflict.field && one.message == conflict.message;
            });
            if (!said) out.push_back(std::move(conflict));
        }
    }
    return out;
}

}  // namespace curb::policy
