// `curb replay`: replays a recorded run under another policy.

#include "trace/job.hpp"

#include <algorithm>
#include <span>

#include "commands/limit_options.hpp"
#include "config/load.hpp"
#include "page/pages.hpp"
#include "policies/policy_source.hpp"
#include "policy/fields.hpp"
#include "terminal/format.hpp"
#include "terminal/terminal.hpp"
#include "terminal/text_width.hpp"

namespace curb::cli {
namespace {

struct ReplayOptions : LimitOptions {
    std::vector<std::string> traces;  // "-": standard input
    bool json = false;

    void declare(Options &takes) {
        takes.arguments("TRACE", traces, "Trace, as of curb report; of a job, those of all its processes");
        LimitOptions::declare(takes, Flags::of_devices);
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
    bool is_used = false;
    Replayed out;
    std::optional<policy::Bytes> smallest;  // nullopt: no cap would do
    std::string paste;                      // the option with it
};

// One process, with the policy that it would get.
struct Process {
    const Recording *recording = nullptr;
    policy::Policy policy{};
    std::string rule{};  // the rule that applies; empty: none
    std::vector<Judged> gpus{};
};

// What all processes of a job hold of one GPU.
struct JudgedJob {
    const JobGpu *gpu = nullptr;
    policy::Bytes peaks = 0;  // the sum of the processes' own
    ReplayedJob out{};
    std::optional<policy::Bytes> smallest{};
    std::string paste{};
};

struct Outcome {
    std::vector<Process> processes;
    std::vector<JudgedJob> job;      // of several processes
    std::vector<std::string> notes;  // the limits of this replay

    // Notes each sentence once.
    void note(std::string text) {
        if (std::find(notes.begin(), notes.end(), text) == notes.end()) notes.push_back(std::move(text));
    }
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

config::Source source_of(const ReplayOptions &options) {
    config::Source out;
    out.named = options.policy.has_value();
    if (out.named) out.file = *options.policy == "-" ? kStandardInput : *options.policy;
    out.cap = policy::joined(options.caps, ",");
    out.job_cap = policy::joined(options.job_caps, ",");
    for (const policy::FlagRow &row : policy::flags())
        if (const auto &text = options.flags[static_cast<std::size_t>(row.flag)])
            out.flags.emplace_back(row.flag, *text);
    return out;
}

// Reads the policy for the program of each trace. If it has errors, prints them, sets `status` and returns nullopt.
std::optional<Outcome> load(const ReplayOptions &options, std::span<const Recording> recordings, int &status) {
    const auto reading = read_policy(source_of(options), false, status);
    if (!reading) return std::nullopt;
    Outcome out;
    for (const Recording &recording : recordings) {
        const config::Outcome loaded = config::outcome(*reading, [&](bool) { return subject_of(recording); });
        out.processes.push_back({&recording, loaded.policy});
        if (loaded.rule) out.processes.back().rule = policy::rule_name(reading->own.file, *loaded.rule);
    }
    if (asks_for_more(reading->own) || (reading->ceiling && asks_for_more(*reading->ceiling)))
        out.note(
            "Some rules ask for a user or an environment, which a trace does not have: they are taken not to match.");
    if (reading->ceiling) out.note(fmt::format("This machine's ceiling, {}, holds here too.", config::kCeiling));
    return out;
}

// True if the trace has the size of each GPU, or the policy needs none.
bool has_sizes(const Process &process) {
    const auto &gpus = process.recording->header.gpus;
    if (!gpus.empty() && std::all_of(gpus.begin(), gpus.end(), [](const auto &gpu) { return gpu.total != 0; }))
        return true;
    const auto is_relative = [](const policy::CapFor &one) {
        return one.size.unit == policy::Size::Unit::basis_points;
    };
    const policy::Policy &policy = process.policy;
    return !has_percentages(policy.gpu) && !has_percentages(policy.ceiling) &&
           std::none_of(policy.narrowed_to.begin(), policy.narrowed_to.end(), is_relative) &&
           std::none_of(policy.job_caps.begin(), policy.job_caps.end(), is_relative);
}

// Fills in the terms of each GPU of the process, and what it was without them.
void judge(Process &process, Outcome &out) {
    policy::Policy &policy = process.policy;
    const Recording &recording = *process.recording;
    const auto gpus = identities(recording);
    for (auto *rules : {&policy.gpu, &policy.ceiling}) {
        policy::Matched matched = policy::match(*rules, gpus);
        for (const std::string &one : matched.unmatched)
            if (rules == &policy.gpu) out.note(one + "; a trace has only ordinals and UUIDs");
        for (std::string &one : matched.ambiguous) out.note(std::move(one));
        *rules = std::move(matched.rules);
    }
    const Summary summary = summarise_with_caps(recording);
    for (std::size_t i = 0; i < gpus.size(); ++i) {
        const GpuSummary &recorded = summary.gpus[i];
        Judged one;
        one.gpu = recorded.gpu;
        one.terms = policy::terms_for(policy, gpus[i], recorded.total);
        one.recorded_peak = recorded.peak;
        one.recorded_refusals = recorded.refusals.size();
        one.is_used = is_used(recorded);
        one.smallest = recorded.smallest_cap;
        one.paste = recorded.paste;
        if (one.terms.growth.keep_free != 0)
            out.note(
                "What other processes held of the GPUs is not in a trace: keep_free is judged as if they had held "
                "nothing.");
        if (one.terms.job_cap && out.processes.size() == 1)
            out.note(
                "The cap of the job is judged as if this process were alone: give the traces of all its processes.");
        if (one.terms.cache.max != 0)
            out.note("The cache is not replayed: blocks stay as long as they did in the recorded run.");
        process.gpus.push_back(std::move(one));
    }
    if (policy.release.idle && policy.release.idle->count() != 0)
        out.note("Releases for idleness (release.idle) are not replayed.");
}

void judge(std::span<const Recording> recordings, std::span<const JobGpu> gpus, Outcome &out) {
    for (Process &process : out.processes) judge(process, out);
    for (std::string &one : what_they_lack(recordings)) out.note(std::move(one));
    for (const JobGpu &gpu : gpus) {
        const auto judged = [&](std::size_t i) -> Judged & {
            auto &all = out.processes[gpu.of[i]].gpus;
            return *std::find_if(all.begin(), all.end(),
                                 [&](const Judged &one) { return one.gpu == gpu.ranks[i].gpu; });
        };
        std::vector<Rank> ranks = gpu.ranks;
        for (std::size_t i = 0; i < ranks.size(); ++i) {
            ranks[i].terms.gpu = judged(i).terms;
            ranks[i].terms.release_before_growth = *out.processes[gpu.of[i]].policy.release.before_growth;
        }
        JudgedJob job{&gpu};
        job.out = replay(ranks);
        for (std::size_t i = 0; i < ranks.size(); ++i) {
            job.peaks += job.out.ranks[i].peak;
            judged(i).out = std::move(job.out.ranks[i]);
        }
        if (recordings.size() == 1) continue;
        job.smallest = smallest_job_cap(ranks);
        if (job.smallest) job.paste = paste_of("--job-cap", gpus.size() == 1 ? "" : gpu.key, *job.smallest);
        out.job.push_back(std::move(job));
    }
}

// Returns the smallest --cap that serves every process of the job on every GPU; empty: none would.
std::string paste_for_all(const Outcome &outcome) {
    policy::Bytes most = 0;
    for (const Process &process : outcome.processes)
        for (const Judged &gpu : process.gpus) {
            if (!gpu.smallest && gpu.is_used) return "";
            most = std::max(most, gpu.smallest.value_or(0));
        }
    return paste_of("--cap", "", most);
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
    if (gpu.terms.job_cap) say("job's cap", format_human(*gpu.terms.job_cap));
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
        say("over the cap", format_human(out.over_cap) + ", by what is not asked for: a first context, code");
    if (gpu.is_used) say("smallest cap", gpu.smallest ? served_by(gpu.paste) : "none");
    return aligned(lines) + refusals_text(recording, out);
}

std::string job_text(const JudgedJob &job, const Recording &first) {
    std::vector<std::vector<std::string>> lines;
    lines.push_back({"  processes", std::to_string(job.out.ranks.size())});
    const auto since =
        static_cast<std::uint64_t>(std::max<std::int64_t>(job.out.peak_unix_ns - first.header.unix_ns, 0));
    lines.push_back({"  peak", fmt::format("{} at {} (the sum of their own peaks: {})", format_human(job.out.peak),
                                           clock_text(first, since), format_human(job.peaks))});
    lines.push_back({"  smallest cap", job.smallest ? served_by(job.paste) : "none"});
    return aligned(lines);
}

std::string text_of(std::span<const Recording> recordings, const ReplayOptions &options, const Outcome &outcome) {
    std::string text;
    for (const Process &process : outcome.processes) {
        const Recording &recording = *process.recording;
        const auto words = policy::joined(options.limit_words(), " ");
        text += fmt::format("{}{}\n{}\nunder {}{}{}\n", text.empty() ? "" : "\n", title_of(recording),
                            origin_of(recording), options.policy.value_or("no policy file"),
                            process.rule.empty() ? "" : ", " + process.rule, words.empty() ? "" : ", " + words);
        for (const Judged &gpu : process.gpus) text += "\n" + gpu_name(gpu.gpu) + "\n" + gpu_text(recording, gpu);
        for (const std::string &one : recording.missing) text += "\nmissing: " + one;
        if (!recording.missing.empty()) text += "\n";
    }
    if (recordings.size() > 1) {
        text += fmt::format("\nthe {} traces together\n", recordings.size());
        if (const std::string paste = paste_for_all(outcome); !paste.empty())
            text += fmt::format("  {} for each process, as the only limit, would have served all\n", paste);
    }
    for (const JudgedJob &job : outcome.job) text += "\n" + job.gpu->key + "\n" + job_text(job, recordings.front());
    for (const std::string &one : outcome.notes) text += "\nnote: " + one;
    return text + (outcome.notes.empty() ? "" : "\n");
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
                         {"job_cap", gpu.terms.job_cap},
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
                         {"smallest_cap", gpu.smallest},
                         {"paste", json::text_or_null(gpu.paste)}});
}

std::string job_json(const JudgedJob &job) {
    return json::object({{"gpu", json::text(job.gpu->key)},
                         {"processes", job.out.ranks.size()},
                         {"peak", json::object({{"bytes", job.out.peak}, {"at_unix_ns", job.out.peak_unix_ns}})},
                         {"sum_of_peaks", job.peaks},
                         {"smallest_cap", job.smallest},
                         {"paste", json::text_or_null(job.paste)}});
}

std::string replay_json(const ReplayOptions &options, const Outcome &outcome) {
    const auto process_members = [](const Process &process) {
        auto members = recording_json(*process.recording);
        members.emplace_back("rule", json::text_or_null(process.rule));
        members.emplace_back("gpus", json::list(process.gpus, judged_json));
        return members;
    };
    json::Members members;
    if (outcome.processes.size() == 1) {
        members = process_members(outcome.processes.front());
    } else {
        members.emplace_back("traces", json::list(outcome.processes, [&](const Process &process) {
                                 return json::object(process_members(process));
                             }));
        members.emplace_back("job", json::list(outcome.job, job_json));
        members.emplace_back("paste", json::text_or_null(paste_for_all(outcome)));
    }
    members.emplace_back("policy", options.policy ? json::text(*options.policy) : "null");
    members.emplace_back("cap", json::text_or_null(policy::joined(options.caps, ",")));
    members.emplace_back("options", json::list(options.limit_words(), json::text));
    members.emplace_back("notes", json::list(outcome.notes, json::text));
    return json::object(members);
}

int replay(const ReplayOptions &options) {
    if (!options.policy && options.limit_words().empty())
        return failed("there is no policy to replay it under; add --policy FILE or --cap SIZE");
    if (const auto fault = options.fault()) return failed(*fault);
    const auto piped = std::count(options.traces.begin(), options.traces.end(), "-") + (options.policy == "-" ? 1 : 0);
    if (piped > 1) return failed("only one of the files can come from standard input; name the others");
    const auto recordings = read_traces(options.traces);
    if (!recordings) return failed(recordings.error(), 1);
    int status = 0;
    std::optional<Outcome> outcome = load(options, *recordings, status);
    if (!outcome) return status;
    for (const Process &process : outcome->processes)
        if (!has_sizes(process))
            return failed(
                "the trace does not have the size of the GPU, so a size in percent means nothing; write it in "
                "bytes");
    const std::vector<JobGpu> gpus = gpus_of_job(*recordings);
    judge(*recordings, gpus, *outcome);
    if (options.json)
        print_line(replay_json(options, *outcome));
    else
        print_text(text_of(*recordings, options, *outcome));
    return 0;
}

}  // namespace

extern const Command kReplay{
    .name = "replay",
    .line = "Show what another policy would have done to a recorded run",
    .help = R"(
Applies the policy to each recorded request, as libcurb.so would. Prints which requests it would have refused, made to
wait or served after a release, how far the allowance would have grown, and the smallest cap that, as the only limit, would
have refused nothing: an option to paste, with what curb keeps free for the driver. Assumes that the program goes on as it
did, also after a refusal. A trace does not have what other processes hold, what frameworks cache, and curb's own cache.
Rules match the recorded command. A trace or a policy named - is standard input.

Several traces are those of one job: each process is replayed beside the others, in the order of their clocks, under the
caps of each and of the job.

Exit status 0, whatever would have been refused; 1: trace or policy cannot be used; 2: the policy cannot be read; 125:
wrong arguments.

Examples:
  curb replay curb-4711.trace.json --policy job.json
  curb replay curb-4711.trace.json --cap 6GiB --growth 2GiB:1GiB:10s
  curb replay rank-*.json --job-cap 12GiB
  curb replay --cap 6GiB --json 4711.trace.json | jq '.gpus[0].smallest_cap')",
    .takes = takes<ReplayOptions, replay>,
};

}  // namespace curb::cli
