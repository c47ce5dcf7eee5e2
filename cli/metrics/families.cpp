#include "metrics/families.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <sstream>

#include "policy/names.hpp"
#include "policy/values/words.hpp"
#include "terminal/format.hpp"

namespace curb::cli {
namespace {

enum class Id : std::uint8_t {
#define CURB_METRIC(id, name, type, labels, help) id,
#include "metrics/metrics.def"
};

constexpr Metric kMetrics[] = {
#define CURB_METRIC(id, name, type, labels, help) {name, MetricType::type, labels, help},
#include "metrics/metrics.def"

};

// All labels of a GPU or process. A row of metrics.def names those that the metric has.
using Labels = std::map<std::string, std::string>;

class Families {
  public:
    Families() {
        for (const Metric &metric : kMetrics) families_.push_back({metric, {}});
    }

    void add(Id id, const Labels &known, double value) {
        Family &family = families_[static_cast<std::size_t>(id)];
        Sample sample{{}, value};
        std::istringstream names(family.metric.labels);
        for (std::string name; names >> name;)
            if (const auto label = known.find(name); label != known.end() && !label->second.empty())
                sample.labels.emplace_back(*label);
        family.samples.push_back(std::move(sample));
    }
    template <class Value>
    void add(Id id, const Labels &known, Value value) {
        add(id, known, static_cast<double>(value));
    }
    template <class Value>
    void add(Id id, const Labels &known, const std::optional<Value> &value) {
        if (value) add(id, known, *value);
    }
    std::vector<Family> take() && { return std::move(families_); }

  private:
    std::vector<Family> families_;
};

Labels with(Labels labels, const char *name, const std::string &value) {
    labels[name] = policy::plain(value);
    return labels;
}

// `gpu` is nvidia-smi's index. A MIG instance has that of its GPU.
Labels labels_of(const View &view, const ViewGpu &gpu) {
    const ViewGpu *whole = whole_of(view, gpu);
    return with(with({}, "gpu", whole && whole->index ? std::to_string(*whole->index) : ""), "uuid", gpu.uuid);
}

// `command` is the kernel's short name: whole command lines would make a new series for almost every process.
Labels labels_of(const ViewProcess &process, Labels labels = {}) {
    labels = with(std::move(labels), "pid", std::to_string(process.pid));
    if (const std::uint64_t other = namespace_of(process))
        labels = with(std::move(labels), "pid_namespace", std::to_string(other));
    return with(with(std::move(labels), "user", process.user), "command", process.name);
}

template <class Milliseconds>
double seconds(Milliseconds count) {
    return static_cast<double>(count) / 1000;
}

void add_books(Families &out, const Labels &labels, const control::GpuStatus &books) {
    out.add(Id::held, labels, books.held);
    for (std::size_t i = 0; i < policy::kKinds; ++i)
        out.add(Id::kind, with(labels, "kind", policy::kind_name(static_cast<policy::Kind>(i))), books.kinds[i]);
    out.add(Id::cap, labels, books.cap);
    out.add(Id::allowance, labels, books.allowance);
    out.add(Id::cached, labels, books.cached);
    out.add(Id::contexts, labels, static_cast<std::uint64_t>(std::max(books.contexts, 0)));
    for (std::size_t i = 0; i < policy::kLimits; ++i)
        out.add(Id::refused, with(labels, "why", policy::limit_name(static_cast<policy::Limit>(i))), books.refused[i]);
    out.add(Id::waited, labels, books.waited);
    out.add(Id::waiting, labels, books.waiting);
    for (std::size_t i = 0; i < policy::kSteps; ++i)
        out.add(Id::released, with(labels, "step", policy::step_name(static_cast<policy::Step>(i))), books.released[i]);
}

void add_waits(Families &out, const Labels &labels, const control::Status &status, int ordinal) {
    std::uint64_t bytes = 0;
    std::optional<control::UnixMs> since, step;
    for (const control::Waiting &one : status.waits) {
        if (one.gpu != ordinal) continue;
        bytes += one.bytes;
        since = std::min(since.value_or(one.since), one.since);
        if (one.step) step = std::min(step.value_or(*one.step), *one.step);
    }
    if (!since) return;
    out.add(Id::waiting_bytes, labels, bytes);
    out.add(Id::waiting_since, labels, seconds(*since));
    if (step) out.add(Id::step_due, labels, seconds(*step));
}

void add_gpu(Families &out, const View &view, const ViewGpu &gpu) {
    const Labels labels = labels_of(view, gpu);
    out.add(Id::gpu_info, with(with(labels, "model", gpu.name), "parent", gpu.parent), 1);
    if (gpu.total > 0) out.add(Id::gpu_total, labels, gpu.total);
    out.add(Id::gpu_used, labels, gpu.used);
    out.add(Id::gpu_free, labels, gpu.free);
    for (const auto &[name, job] : jobs_on(view, gpu)) {
        out.add(Id::job_held, with(labels, "job", name), job.held);
        out.add(Id::job_cap, with(labels, "job", name), job.cap);
    }
    for (const ViewUse &use : gpu.uses) {
        const ViewProcess &process = view.processes[use.process];
        const Labels of_use = labels_of(process, labels);
        out.add(Id::nvml_used, of_use, use.nvml);
        out.add(Id::idle, of_use, use.idle);
        if (const control::GpuStatus *books = books_of(view, use)) {
            add_books(out, of_use, *books);
            add_waits(out, of_use, *process.status, books->ordinal);
        } else if (const control::board::Gpu *posted = posted_of(view, use)) {
            out.add(Id::held, of_use, posted->held);
            out.add(Id::cap, of_use, posted->cap);
        }
    }
}

void add_nap(Families &out, const Labels &labels, const control::NapStatus &nap) {
    out.add(Id::napping, labels, nap.out && !nap.stays_out ? 1 : 0);
    out.add(Id::naps, labels, nap.count);
    out.add(Id::nap_bytes, labels, nap.bytes);
    out.add(Id::nap_bytes_total, labels, nap.bytes_total);
    out.add(Id::nap_light, labels, nap.out && nap.is_light ? 1 : 0);
    out.add(Id::nap_moved, with(labels, "way", "zeros"), nap.zeros);
    for (const auto &[way, move] : {std::pair("light", &nap.light), std::pair("deep", &nap.deep)}) {
        const Labels of_way = with(labels, "way", way);
        out.add(Id::nap_moved, of_way, move->bytes);
        if (move->out_ms != 0) out.add(Id::nap_move_time, with(of_way, "direction", "out"), seconds(move->out_ms));
        if (move->back_ms != 0) out.add(Id::nap_move_time, with(of_way, "direction", "back"), seconds(move->back_ms));
    }
    out.add(Id::nap_copied_total, labels, nap.light_total);
    out.add(Id::nap_zeros_total, labels, nap.zeros_total);
    out.add(Id::nap_kept, labels, nap.kept);
    out.add(Id::nap_waited, labels, seconds(nap.waited_ms));
    out.add(Id::nap_waited_total, labels, seconds(nap.waited_total_ms));
    out.add(Id::nap_waited_ms, labels, nap.waited_ms);
    out.add(Id::nap_waited_total_ms, labels, nap.waited_total_ms);
}

void add_process(Families &out, const ViewProcess &process) {
    if (!process.under_curb) return;
    const Labels labels = labels_of(process);
    out.add(Id::suspended, labels, state_of(process) == State::suspended ? 1 : 0);
    if (!process.status) return;
    const control::Status &status = *process.status;
    out.add(Id::process_info, with(with(labels, "job", status.job), "container", process.container), 1);
    if (status.nap) add_nap(out, labels, *status.nap);
    if (status.turn) {
        out.add(Id::turns, labels, status.turn->count);
        out.add(Id::turn_length, labels, seconds(status.turn->length_ms));
        out.add(Id::turn_moved, labels, seconds(status.turn->moved_ms));
    }
    out.add(Id::policy_unusable, labels, status.policy.unusable ? 1 : 0);
    out.add(Id::policy_rejected, labels, status.policy.error.empty() ? 0 : 1);
    if (!status.trace) return;
    out.add(Id::trace_events, labels, status.trace->events);
    out.add(Id::trace_dropped, labels, status.trace->dropped);
}

// True if a limit of the policy or of a job applies to some GPU of the process.
bool is_capped(const control::Status &status) {
    return std::any_of(status.gpus.begin(), status.gpus.end(),
                       [](const control::GpuStatus &gpu) { return gpu.cap || gpu.job_cap || gpu.allowance; });
}

bool is_capped(const control::board::Entry &posted) {
    return std::any_of(posted.gpus.begin(), posted.gpus.end(),
                       [](const control::board::Gpu &gpu) { return gpu.cap.has_value(); });
}

void add_processes(Families &out, const View &view) {
    std::uint64_t capped = 0, observed = 0, silent = 0, uncapped = 0, unknown = 0;
    for (const ViewProcess &process : view.processes) {
        if (process.status)
            ++(is_capped(*process.status) ? capped : observed);
        else if (process.under_curb)
            ++silent;
        else if (process.posted)
            ++(is_capped(*process.posted) ? capped : observed);
        else
            ++(is_under_curb(process) ? uncapped : unknown);
    }
    out.add(Id::processes, {{"state", "capped"}}, capped);
    out.add(Id::processes, {{"state", "observed"}}, observed);
    out.add(Id::processes, {{"state", "silent"}}, silent);
    if (view.nvml_fault.empty()) out.add(Id::processes, {{"state", "uncapped"}}, uncapped);
    out.add(Id::processes, {{"state", "unknown"}}, unknown);
}

// Returns a label's value, quoted and escaped.
std::string quoted(const std::string &text) {
    std::string out = "\"";
    for (const char c : text) {
        if (c == '\\' || c == '"' || c == '\n') out += '\\';
        out += c == '\n' ? 'n' : c;
    }
    return out + '"';
}

}  // namespace

std::vector<Family> families_of(const View &view, const std::string &version) {
    Families out;
    out.add(Id::info, {{"version", version}}, 1);
    out.add(Id::nvml_up, {}, view.nvml_fault.empty() ? 1 : 0);
    add_processes(out, view);
    for (const ViewGpu &gpu : view.gpus) add_gpu(out, view, gpu);
    for (const ViewProcess &process : view.processes) add_process(out, process);
    return std::move(out).take();
}

std::string text_of(const std::vector<Family> &families) {
    const auto label = [](const auto &one) { return one.first + "=" + quoted(one.second); };
    std::string out;
    for (const auto &[metric, samples] : families) {
        out += fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n", metric.name, metric.help,
                           metric.type == MetricType::counter ? "counter" : "gauge");
        for (const auto &[labels, value] : samples)
            out += fmt::format("{}{} {}\n", metric.name,
                               labels.empty() ? "" : "{" + policy::joined(labels, ",", label) + "}", value);
    }
    return out;
}

}  // namespace curb::cli
