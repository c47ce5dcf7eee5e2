// `curb replay`: replays a recorded run under another policy.

#include "replay.hpp"

#include <algorithm>
#include <span>

#include "command.hpp"
#include "config/load.hpp"
#include "format.hpp"
#include "pages.hpp"
#include "policy/fields.hpp"
#include "policy_source.hpp"
#include "terminal.hpp"
#include "text_width.hpp"

namespace curb::cli {
namespace {

struct ReplayOptions {
    std::string trace;  // "-": standard input
    std::optional<std::string> policy, cap;
    bool json = false;

    void declare(Options &takes) {
        takes.argument("TRACE", trace, "Trace, as of curb report");
        takes.option("--policy", policy, "FILE", "Policy file; -: standard input");
        takes.option("--cap", cap, "SIZE", "Ceiling of GPU memory on each device: 8GiB, 512MiB, 75%");
        takes.json(json);
    }
};

// Returns the program of the trace as rules match it. A trace has neither the user nor the environment.
policy::Subject subject_of(const Recording &recording) {
    const std::string &command = recording.header.command;
    const std::size_t end = std::min(command.find(' '), command.size());
    policy::Subject out;
    out.exe = command.substr(0, end);
    out.args = command.substr(std::min(end + 1, command.size()));
    return out;
}

bool asks_for_more(const config::Document &document) {
    return std::any_of(document.file.rules.begin(), document.file.rules.end(),
                       [](const policy::Rule &rule) { return rule.match.user || rule.match.env; });
}

// True if a size that the replay uses is a percentage of the device. The replay ignores cache.max.
bool has_percentages(const std::vector<policy::GpuRule> &rules) {
    policy::Layer layer;
    layer.gpu = rules;
    const auto settings = policy::settings(layer);
    return std::any_of(settings.begin(), settings.end(), [](const policy::Setting &one) {
        return one.field->type == policy::FieldType::size && one.field->pointer != "/gpu/*/cache/max" &&
               one.value.find('%') != std::string::npos;
    });
}

struct Judged {
    int gpu = 0;
    policy::GpuTerms terms;
    policy::Bytes recorded_peak = 0;
    std::size_t recorded_refusals = 0;
    Replayed out;
    std::optional<policy::Bytes> smallest;
};

struct Outcome {
    policy::Policy policy;
    std::string rule;  // the rule that applies; empty: none
    std::vector<Judged> gpus;
    std::vector<std::string> notes;  // the limits of this replay
};

std::vector<policy::GpuIdentity> identities(const Recording &recording) {
    std::vector<policy::GpuIdentity> out;
    for (const int gpu : gpus_of(recording)) {
        policy::GpuIdentity one;
        one.ordinal = gpu;
        if (const auto *known = recording.gpu(gpu))
            (known->uuid.starts_with("MIG-") ? one.mig_uuid : one.gpu_uuid) = known->uuid;
        out.push_back(std::move(one));
    }
    return out;
}

// Reads the policy for the program of the trace. If it has errors, prints them, sets `status` and returns nullopt.
std::optional<Outcome> load(const ReplayOptions &options, const Recording &recording, int &status) {
    config::Source source;
    source.named = options.policy.has_value();
    if (source.named) source.file = *options.policy == "-" ? kStandardInput : *options.policy;
    source.cap = options.cap.value_or("");
    const auto reading = read_policy(source, false, status);
    if (!reading) return std::nullopt;
    const config::Outcome loaded = config::outcome(*reading, [&](bool) { return subject_of(recording); });
    Outcome out{loaded.policy, {}, {}, {}};
    if (loaded.rule != nullptr) out.rule = policy::rule_name(reading->own.file, *loaded.rule);
    if (asks_for_more(reading->own) || (reading->ceiling && asks_for_more(*reading->ceiling)))
        out.notes.emplace_back(
            "Some rules ask for a user or an environment, which a trace does not have: they are taken not to match.");
    if (reading->ceiling)
        out.notes.push_back(fmt::format("This machine's ceiling, {}, holds here too.", config::kCeiling));
    return out;
}

void judge(const Recording &recording, Outcome &out) {
    policy::Policy &policy = out.policy;
    const auto gpus = identities(recording);
    for (auto *rules : {&policy.gpu, &policy.ceiling}) {
        policy::Matched matched = policy::match(*rules, gpus);
        for (const std::string &one : matched.unmatched)
            if (rules == &policy.gpu) out.notes.push_back(one + "; a trace has only ordinals and UUIDs");
        for (std::string &one : matched.ambiguous) out.notes.push_back(std::move(one));
        *rules = std::move(matched.rules);
    }
    const Summary summary = summarise(recording);
    bool keeps_free = false, caches = false, jobs = false;
    for (std::size_t i = 0; i < gpus.size(); ++i) {
        const policy::Bytes total = summary.gpus[i].total;
        Judged one;
        one.gpu = gpus[i].ordinal;
        one.terms = policy::terms_for(policy, gpus[i], total);
        one.recorded_peak = summary.gpus[i].peak;
        one.recorded_refusals = summary.gpus[i].refusals.size();
        keeps_free |= one.terms.growth.keep_free != 0;
        caches |= one.terms.cache.max != 0;
        jobs |= one.terms.job_cap.has_value();
        const ReplayTerms terms{one.terms, total, *policy.release.before_growth};
        one.out = replay(recording, one.gpu, terms);
        one.smallest = smallest_cap(recording, one.gpu, total);
        out.gpus.push_back(std::move(one));
    }
    if (keeps_free)
        out.notes.push_back(
            "What other processes held of the GPUs is not in a trace: keep_free is judged as if they had held "
            "nothing.");
    if (jobs) out.notes.push_back("A trace is of one process: caps of its job are not replayed.");
    if (caches) out.notes.push_back("The cache is not replayed: blocks stay as long as they did in the recorded run.");
    if (policy.release.idle && policy.release.idle->count() != 0)
        out.notes.push_back("Releases for idleness (release.idle) are not replayed.");
}

// ---- text ----

using policy::format_human;

std::string refusals_text(const Recording &recording, const Replayed &out) {
    constexpr std::size_t kMost = 10;
    std::vector<std::vector<std::string>> lines;
    for (const ReplayRefusal &one : std::span(out.refusals).first(std::min(kMost, out.refusals.size())))
        lines.push_back({"    " + clock_text(recording, one.ns), format_human(one.bytes), policy::kind_text(one.kind),
                         format_human(one.held) + " held",
                         fmt::format("for {}{}{}", policy::limit_text(one.why),
                                     one.waited_ns == 0 ? "" : " after " + span_text(one.waited_ns),
                                     one.recorded ? ", as then" : "")});
    return aligned(lines) + (out.refused > kMost ? fmt::format("    and {} more\n", out.refused - kMost) : "");
}

std::string gpu_text(const Recording &recording, const Judged &gpu) {
    const Replayed &out = gpu.out;
    std::vector<std::vector<std::string>> lines;
    const auto say = [&](const char *what, const std::string &text) {
        lines.push_back({std::string("  ") + what, text});
    };
    const std::string recorded = fmt::format(" (recorded: {})", gpu.recorded_refusals);
    say("cap", gpu.terms.cap ? format_human(*gpu.terms.cap) : "none");
    say("peak", fmt::format("{} at {} (recorded: {})", format_human(out.peak), clock_text(recording, out.peak_ns),
                            format_human(gpu.recorded_peak)));
    say("requests", std::to_string(out.requests));
    say("refused", out.refused != 0 ? fmt::format("{}, {}{}", out.refused, format_human(out.refused_bytes), recorded)
                                    : "none" + (gpu.recorded_refusals == 0 ? "" : recorded));
    if (out.served_now != 0) say("served", fmt::format("{} that the recorded run refused", out.served_now));
    if (out.device_refused != 0)
        say("full device", fmt::format("{} refused by the device itself, as then", out.device_refused));
    if (out.waits != 0)
        say("waited", fmt::format("{}, {} in all, at most {}; {} timed out", out.waits, span_text(out.waited_ns),
                                  span_text(out.longest_wait_ns), out.waits_timed_out));
    if (gpu.terms.growth.start)
        say("growth", fmt::format("{}, to {}", counted(out.steps.size(), "step"),
                                  out.allowance == policy::kUnbounded ? "no limit" : format_human(out.allowance)));
    if (out.releases != 0)
        say("released",
            fmt::format("{}, {} of unused pool memory", counted(out.releases, "time"), format_human(out.released)));
    if (out.over_cap != 0)
        say("over the cap", format_human(out.over_cap) + ", by what is not asked for: contexts, code");
    say("smallest cap",
        gpu.smallest ? format_human(*gpu.smallest) + ", as the only limit, would have served it" : "none");
    return aligned(lines) + refusals_text(recording, out);
}

std::string text_of(const Recording &recording, const ReplayOptions &options, const Outcome &outcome) {
    std::string text = fmt::format(
        "{}\n{}\nunder {}{}{}\n", title_of(recording), origin_of(recording), options.policy.value_or("no policy file"),
        outcome.rule.empty() ? "" : ", " + outcome.rule, options.cap ? ", --cap " + *options.cap : "");
    for (const Judged &gpu : outcome.gpus) text += "\n" + gpu_name(gpu.gpu) + "\n" + gpu_text(recording, gpu);
    for (const std::string &one : recording.missing) text += "\nmissing: " + one;
    for (const std::string &one : outcome.notes) text += "\nnote: " + one;
    return text + (recording.missing.empty() && outcome.notes.empty() ? "" : "\n");
}

// ---- JSON ----

std::string judged_json(const Judged &gpu) {
    const Replayed &out = gpu.out;
    const auto refusal = [](const ReplayRefusal &one) {
        return json::object({{"at_ns", one.ns},
                             {"bytes", one.bytes},
                             {"kind", json::text(policy::kind_name(one.kind))},
                             {"why", json::text(policy::limit_name(one.why))},
                             {"held", one.held},
                             {"limit", bounded(one.limit)},
                             {"waited_ns", one.waited_ns},
                             {"recorded", one.recorded}});
    };
    const auto step = [](const auto &one) {
        return json::object({{"at_ns", one.first}, {"allowance", bounded(one.second)}});
    };
    const auto steps = std::span(out.steps).first(std::min(out.steps.size(), kMostListed));
    return json::object({{"gpu", gpu.gpu},
                         {"cap", gpu.terms.cap},
                         {"recorded", json::object({{"peak", gpu.recorded_peak}, {"refused", gpu.recorded_refusals}})},
                         {"requests", out.requests},
                         {"peak", json::object({{"bytes", out.peak}, {"at_ns", out.peak_ns}})},
                         {"refused", json::object({{"count", out.refused},
                                                   {"bytes", out.refused_bytes},
                                                   {"first", json::list(out.refusals, refusal)}})},
                         {"device_refused", out.device_refused},
                         {"served_now", out.served_now},
                         {"waited", json::object({{"count", out.waits},
                                                  {"in_vain", out.waits_timed_out},  // its name in 0.1
                                                  {"total_ns", out.waited_ns},
                                                  {"longest_ns", out.longest_wait_ns}})},
                         {"released", json::object({{"count", out.releases}, {"bytes", out.released}})},
                         {"growth", json::object({{"steps", out.steps.size()},
                                                  {"allowance_at_end", bounded(out.allowance)},
                                                  {"first", json::list(steps, step)}})},
                         {"over_cap", out.over_cap},
                         {"smallest_cap", gpu.smallest}});
}

std::string replay_json(const Recording &recording, const ReplayOptions &options, const Outcome &outcome) {
    auto members = recording_json(recording);
    members.emplace_back("policy", options.policy ? json::text(*options.policy) : "null");
    members.emplace_back("cap", options.cap ? json::text(*options.cap) : "null");
    members.emplace_back("rule", json::text_or_null(outcome.rule));
    members.emplace_back("gpus", json::list(outcome.gpus, judged_json));
    members.emplace_back("notes", json::list(outcome.notes, json::text));
    return json::object(members);
}

int replay(const ReplayOptions &options) {
    if (!options.policy && !options.cap)
        return failed("replay: there is no policy to replay it under; add --policy FILE or --cap SIZE");
    if (options.trace == "-" && options.policy == "-")
        return failed("replay: trace and policy cannot both come from standard input; name a file for one of them");
    const auto recording = read_trace(options.trace);
    if (!recording) return failed("replay: " + recording.error(), 1);
    int status = 0;
    std::optional<Outcome> outcome = load(options, *recording, status);
    if (!outcome) return status;
    const auto &gpus = recording->header.gpus;
    const bool sized =
        !gpus.empty() && std::all_of(gpus.begin(), gpus.end(), [](const auto &gpu) { return gpu.total != 0; });
    const auto &narrowed = outcome->policy.narrowed_to;
    const bool relative = has_percentages(outcome->policy.gpu) || has_percentages(outcome->policy.ceiling) ||
                          std::any_of(narrowed.begin(), narrowed.end(), [](const policy::CapFor &one) {
                              return one.size.unit == policy::Size::Unit::basis_points;
                          });
    if (!sized && relative)
        return failed(
            "replay: the trace does not have the size of the GPU, so a size in percent means nothing; write it in "
            "bytes");
    judge(*recording, *outcome);
    if (options.json)
        print_line(replay_json(*recording, options, *outcome));
    else
        print_text(text_of(*recording, options, *outcome));
    return 0;
}

}  // namespace

extern const Command kReplay{
    .name = "replay",
    .line = "Show what another policy would have done to a recorded run",
    .help = R"(
Applies the policy to each recorded request, as libcurb.so would. Prints which requests it would have refused, made to
wait or served after a release, how far the allowance would have grown, and the smallest cap that, as the only limit, would
have refused nothing. Assumes that the program goes on as it did, also after a refusal. A trace does not have what other
processes hold, what frameworks cache, and curb's own cache. Rules match the recorded command.

Exit status 0, whatever would have been refused; 1: trace or policy cannot be used; 2: the policy cannot be read; 125:
wrong arguments.

Examples:
  curb replay curb-4711.trace.json --policy job.json
  curb replay curb-4711.trace.json --cap 6GiB
  curb replay --cap 6GiB --json 4711.trace.json | jq '.gpus[0].smallest_cap')",
    .takes = takes<ReplayOptions, replay>,
};

}  // namespace curb::cli
