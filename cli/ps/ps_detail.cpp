#include <algorithm>
#include <span>
#include <sstream>

#include "machine/target.hpp"
#include "policy/fields.hpp"
#include "policy/names.hpp"
#include "policy/values/size.hpp"
#include "ps/ps_text.hpp"
#include "terminal/format.hpp"
#include "terminal/text_width.hpp"

namespace curb::cli {
namespace {

using policy::Bytes;
using policy::format_human;

constexpr std::size_t kNames = 10;  // width of the lines' names, without the indent
constexpr std::size_t kSizes = 11;  // width of sizes: "1023.99 GiB"

class Detail {
  public:
    Detail(const View &view, std::size_t process, const Screen &screen, control::UnixMs now)
        : view_(view), process_(view.processes[process]), index_(process), screen_(screen), now_(now) {}

    std::string done() && {
        head();
        if (process_.status) about_policy(*process_.status);
        for (const ViewGpu &gpu : view_.gpus)
            for (const ViewUse &use : gpu.uses)
                if (use.process == index_) about_gpu(gpu, use);
        if (process_.status) {
            waits(*process_.status);
            refusals(*process_.status);
            releases(*process_.status);
            bypasses(*process_.status);
        }
        return std::move(out_);
    }

  private:
    // Adds a line. Wraps its text below where the text begins.
    void line(std::size_t indent, const std::string &name, const std::string &text, Ink ink = Ink::plain) {
        const std::string label = padded(std::string(indent, ' ') + name, indent + kNames) + "  ";
        const std::size_t begin = width_of(label);
        const bool fits = screen_.width && *screen_.width > begin + 8;
        std::istringstream lines(fits ? wrapped(text, *screen_.width - begin, 0) : text);
        std::string head = label;
        for (std::string one; std::getline(lines, one); head.assign(begin, ' '))
            out_ += head + inked(screen_, ink, one) + "\n";
    }
    void title(const std::string &text) { out_ += inked(screen_, Ink::bold, text) + "\n"; }

    void head() {
        std::string text = "process " + label_of(process_.pid, process_.name);
        if (!process_.user.empty()) text += " of " + plain(process_.user);
        if (const auto &status = process_.status) {
            text += ", under curb " + plain(status->version);
            if (status->since != 0) text += " for " + span_text(status->since, now_);
        } else {
            text += process_.under_curb ? ", under curb" : ", not under curb";
        }
        title(text);
        if (!process_.command.empty()) line(2, "command", plain(process_.command));
        if (!process_.container.empty()) line(2, "container", process_.container);
        if (process_.status && process_.status->turn) turn(*process_.status->turn);
        if (process_.status && process_.status->nap) nap(*process_.status->nap);
        if (state_of(process_) == State::suspended)
            line(2, "suspended",
                 "its memory is in host memory; curb resume " + std::to_string(process_.pid) + " brings it back",
                 Ink::yellow);
        if (process_.stopped && process_.trouble.empty())
            line(2, "stopped", "until: kill -CONT " + std::to_string(process_.pid), Ink::yellow);
        if (!process_.trouble.empty()) line(2, "silent", "it " + plain(process_.trouble), Ink::yellow);
    }

    // "12 s left of 30s; 4 so far, whose moves took 10.4 s"
    void turn(const control::TurnStatus &turn) {
        const control::UnixMs ends = turn.since + static_cast<control::UnixMs>(turn.length_ms);
        const std::string length = policy::format(policy::Duration(turn.length_ms));
        const std::string now = turn.since == 0 ? "of " + length + "; it is not its turn"
                                : ends > now_   ? span_text(now_, ends) + " left of " + length
                                                : "of " + length + ", over: it leaves when another process waits";
        line(2, "turns",
             fmt::format("{}; {} so far, whose moves took {}", now, turn.count,
                         seconds_text(std::chrono::milliseconds(turn.moved_ms))));
    }
    void nap(const control::NapStatus &nap) {
        if (nap.out && !nap.stays_out)
            line(2, "naps",
                 fmt::format("since {}, with {} in host memory {}", clock_text(nap.since, now_),
                             format_human(nap.bytes), nap_end_text(view_, index_, now_)),
                 Ink::yellow);
        else if (nap.count > 0 && !nap.out)
            line(2, "naps",
                 fmt::format("{} so far; a call waited {} for the end of the last, of {}", nap.count,
                             policy::format(policy::Duration(nap.waited_ms)), format_human(nap.bytes)));
        layers(nap);
        if (!nap.not_light.empty()) line(2, "light", "none: " + plain(nap.not_light));
        if (nap.kept != 0) line(2, "kept", format_human(nap.kept) + " of host memory, for its next nap");
        if (!nap.refused.empty())
            line(2, nap.out || nap.count > 0 ? "" : "naps", "none now: " + plain(nap.refused), Ink::yellow);
    }
    void layers(const control::NapStatus &nap) {
        if (nap.light.bytes != 0 || nap.zeros != 0)
            line(2, "light",
                 move_text(nap.light) + " by curb" +
                     (nap.zeros == 0 ? "" : "; " + format_human(nap.zeros) + " of zeros, not copied"));
        if (nap.deep.bytes != 0) line(2, "deep", move_text(nap.deep) + " by the driver");
        if (nap.out && !nap.stays.empty()) line(2, "stays", plain(nap.stays), Ink::yellow);
    }
    // Returns "6.5 GiB out in 0.2 s (43.33 GiB/s), back in 0.2 s (38.24 GiB/s)".
    static std::string move_text(const control::MoveStatus &move) {
        const auto took = [&](std::uint64_t ms) {
            const Seconds time = std::chrono::milliseconds(ms);
            return seconds_text(time) + " (" + rate_text(move.bytes, time) + ")";
        };
        return format_human(move.bytes) + " out in " + took(move.out_ms) +
               (move.back_ms == 0 ? "" : ", back in " + took(move.back_ms));
    }

    void about_policy(const control::Status &status) {
        const control::PolicyStatus &policy = status.policy;
        std::string text = policy.file.empty() ? "no file" : plain(policy.file);
        if (!policy.rule.empty()) text += ", " + plain(policy.rule);
        if (policy.since != 0) text += ", in force since " + clock_text(policy.since, now_);
        line(2, "policy", text);
        if (policy.unusable) line(2, "", "it cannot be used, so curb refuses every request", Ink::red);
        if (!policy.error.empty())
            line(2, "", (policy.unusable ? "" : "the last edit is not in force: ") + plain(policy.error), Ink::red);
        if (!policy.cap.empty()) line(2, "CURB_CAP", plain(policy.cap));
        if (!policy.flags.empty()) line(2, "variables", plain(policy.flags));
        if (!policy.ceiling.empty()) line(2, "ceiling", plain(policy.ceiling));
        about_signal(status);
        if (!status.returns_nothing.empty())
            line(2, "release", control::returns_nothing_text(status.returns_nothing), Ink::yellow);
        if (status.trace) about_trace(*status.trace);
    }

    void about_signal(const control::Status &status) {
        if (!status.signal_trouble.empty())
            line(2, "signal", "none asks for a release: " + plain(status.signal_trouble), Ink::yellow);
        else if (!status.signal.empty())
            line(2, "signal", status.signal == "none" ? "none asks for a release" : plain(status.signal));
    }

    void about_trace(const control::TraceStatus &trace) {
        line(2, "trace",
             fmt::format("{}, {} events{}", plain(trace.file), trace.events,
                         trace.dropped > 0 ? fmt::format(", {} more were dropped", trace.dropped) : ""));
        if (!trace.error.empty()) line(2, "", "nothing is written any more: " + plain(trace.error), Ink::red);
    }

    void about_gpu(const ViewGpu &gpu, const ViewUse &use) {
        const control::GpuStatus *books = books_of(view_, use);
        std::string text = gpu_label(view_, gpu);
        if (!gpu.name.empty()) text += ", " + plain(gpu.name);
        if (books) text += ", cuda:" + std::to_string(books->ordinal);
        title(text + ", " + plain(gpu.uuid));
        if (books) about_books(*books);
        const std::string nothing = view_.nvml_fault.empty() ? "nothing of this process" : plain(view_.nvml_fault);
        line(2, "NVML says", use.nvml ? format_human(*use.nvml) : nothing);
    }

    [[nodiscard]] std::string held_text(const control::GpuStatus &books, bool over) const {
        std::string out = format_human(books.held);
        if (process_.suspended) out += ", in host memory";
        if (process_.suspended && process_.status->nap && process_.status->nap->is_light)
            out += " but for NVML's figure";
        if (over) out += fmt::format(", {} more than its cap", format_human(books.held - *books.cap));
        if (over && process_.status->releasing) out += "; a release is under way";
        return out;
    }
    void about_books(const control::GpuStatus &books) {
        const bool over = is_over_cap(process_, books);
        line(2, "held", held_text(books, over), over ? Ink::red : Ink::plain);
        for (std::size_t i = 0; i < policy::kKinds; ++i)
            if (books.kinds[i] != 0) about_kind(books, static_cast<policy::Kind>(i));
        if (books.cached > 0) line(2, "cached", format_human(books.cached) + " of it, for reuse");
        line(2, "cap", cap_text(books));
        if (books.job_cap)
            line(2, "job",
                 process_.status->job.empty()
                     ? "its ledger cannot be used, so every request under the job's cap is refused: see the log"
                     : fmt::format("{} of {} held by all processes of {}", format_human(books.job_held),
                                   format_human(*books.job_cap), plain(process_.status->job)));
        if (books.allowance) line(2, "allowance", format_human(*books.allowance) + ", until the next growth step");
        if (control::refused(books) > 0) line(2, "refused", by_limit(books), Ink::yellow);
        if (books.waited > 0) line(2, "waited", waited_text(books.waited));
        if (const Bytes all = control::released(books)) line(2, "released", format_human(all) + ": " + by_step(books));
    }
    void about_kind(const control::GpuStatus &books, policy::Kind kind) {
        std::string of = std::string(policy::kind_text(kind));
        if (kind == policy::Kind::pools && books.pools.size() > 1) of += " (" + pools_text(books.pools) + ")";
        if (kind == policy::Kind::contexts && books.contexts > 1) of += fmt::format(" ({})", books.contexts);
        line(2, "", padded(format_human(books.kinds[static_cast<std::size_t>(kind)]), kSizes, true) + "  " + of);
    }
    static std::string waited_text(std::uint64_t times) {
        return counted(times, "request") + (times == 1 ? " has" : " have") + " waited for memory";
    }
    static std::string pools_text(const std::vector<Bytes> &pools) {
        constexpr std::size_t kMost = 4;
        const auto largest = std::span(pools).first(std::min(pools.size(), kMost));
        return fmt::format("{} of them: {}{}", pools.size(), policy::joined(largest, ", ", format_human),
                           pools.size() > kMost ? ", ..." : "");
    }
    static std::string cap_text(const control::GpuStatus &books) {
        if (!books.cap) return "none";
        std::string out = format_human(*books.cap);
        if (books.live_cap)
            out += ", set by curb cap (" + policy::format(*books.live_cap) + ")";
        else if (!books.handed_in.empty())
            out += ", from " + plain(books.handed_in);
        if (books.ceiling) out += ", the machine's ceiling";
        return out;
    }
    static std::string by_limit(const control::GpuStatus &books) {
        std::vector<std::string> out;
        for (std::size_t i = 0; i < policy::kLimits; ++i)
            if (books.refused[i] != 0)
                out.push_back(
                    fmt::format("{} hit {}", books.refused[i], policy::limit_text(static_cast<policy::Limit>(i))));
        return (out.size() > 1 ? fmt::format("{}: ", control::refused(books)) : "") + policy::joined(out, ", ");
    }
    static std::string by_step(const control::GpuStatus &books) {
        std::vector<std::string> out;
        for (std::size_t i = 0; i < policy::kSteps; ++i)
            if (books.released[i] > 0)
                out.push_back(policy::step_name(static_cast<policy::Step>(i)) +
                              (" " + format_human(books.released[i])));
        return policy::joined(out, ", ");
    }

    void waits(const control::Status &status) {
        if (status.waits.empty()) return;
        title("requests that wait");
        for (const control::Waiting &one : status.waits)
            line(2, "cuda:" + std::to_string(one.gpu), wait_text(one, process_.pid, now_), Ink::yellow);
    }
    void refusals(const control::Status &status) {
        if (status.refusals.empty()) return;
        title("last refusals");
        for (auto one = status.refusals.rbegin(); one != status.refusals.rend(); ++one) {
            line(2, clock_text(one->at, now_),
                 fmt::format("{} on cuda:{} hit {}{}; {} was held",
                             one->bytes == 0 ? "code of unknown size" : format_human(one->bytes), one->gpu,
                             policy::limit_text(one->why), one->limit > 0 ? ", " + format_human(one->limit) : "",
                             format_human(one->held)));
        }
    }
    void releases(const control::Status &status) {
        if (status.releases.empty()) return;
        title(status.releasing ? "last releases; another one is under way" : "last releases");
        for (auto one = status.releases.rbegin(); one != status.releases.rend(); ++one) {
            line(2, clock_text(one->at, now_),
                 fmt::format("{} in {} on {}", control::size_text(control::freed(one->report)),
                             control::time_text(one->report.milliseconds), plain(one->report.trigger)));
            for (const control::StepReport &step : one->report.steps)
                line(4, std::string(policy::step_name(step.step)),
                     control::size_text(step.freed) + " in " + control::time_text(step.milliseconds) +
                         (step.reason.empty() ? "" : ": " + plain(step.reason)));
        }
    }
    void bypasses(const control::Status &status) {
        if (status.bypasses.empty()) return;
        title("calls that bypass curb");
        for (const control::Bypass &one : status.bypasses) line(2, "", plain(one.library) + ": " + plain(one.how));
    }

    const View &view_;
    const ViewProcess &process_;
    std::size_t index_;
    const Screen &screen_;
    control::UnixMs now_;
    std::string out_;
};

}  // namespace

std::string ps_detail(const View &view, std::size_t process, const Screen &screen, control::UnixMs now) {
    return Detail(view, process, screen, now).done();
}

}  // namespace curb::cli
