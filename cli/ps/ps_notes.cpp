#include <algorithm>

#include "policy/size.hpp"
#include "ps_text.hpp"
#include "text_width.hpp"

namespace curb::cli {
namespace {

using policy::Bytes;
using policy::format_human;
using policy::Obstacle;

// Returns a cap under which the refused request would have fitted, with some room for the driver's own memory: in whole
// GiB, or in quarters of a GiB if it is small.
std::string enough(const control::Refusal &last) {
    const Bytes least = std::max(last.held + last.bytes + policy::GiB / 4, last.limit + 1);
    const Bytes step = least < 4 * policy::GiB ? policy::GiB / 4 : policy::GiB;
    return policy::format_exact((least + step - 1) / step * step);
}

std::string help(int pid, const control::GpuStatus &books, const control::Refusal &last) {
    const std::string id = std::to_string(pid);
    switch (last.why) {
        case Obstacle::cap:
            if (last.bytes > books.total) return "help: none: the GPU has " + format_human(books.total);
            if (books.ceiling) return "help: the machine's ceiling allows no more; ask who keeps /etc/curb/policy.json";
            return "help: raise it: curb cap " + id + " " + enough(last);
        case Obstacle::allowance: return "help: it grows with time; or let its policy begin with more (growth.start)";
        case Obstacle::keep_free:
            return "help: others have to give memory back, or its policy keeps less free for them";
        case Obstacle::device: return "help: make room: curb release --all, or end what holds the most";
        case Obstacle::policy: break;
    }
    return "help: curb policy check";
}

// For this long a refusal has a line below the table. The column of refusals counts it as long as the process lives.
constexpr control::UnixMs kNews = 10 * 60 * 1000;

// True if the limit that the request met has been raised since.
bool is_raised(const control::GpuStatus &books, const control::Refusal &last) {
    const auto is_above = [&](const std::optional<Bytes> &limit) { return !limit || *limit > last.limit; };
    return (last.why == Obstacle::cap && is_above(books.cap)) ||
           (last.why == Obstacle::allowance && is_above(books.allowance));
}

class Notes {
  public:
    Notes(const View &view, control::UnixMs now) : view_(view), now_(now) {}

    std::vector<std::string> done() && {
        if (!view_.nvml_fault.empty())
            out_.push_back(plain(view_.nvml_fault) + "; so there is only what capped processes say");
        for (const ViewProcess &process : view_.processes) about(process);
        return std::move(out_);
    }

  private:
    void about(const ViewProcess &process) {
        const std::string who = process_label(process), id = std::to_string(process.pid);
        if (process.suspended)
            say(who + " is suspended: what it held is in host memory until: curb resume " + id);
        else if (process.stopped && process.trouble.empty())
            say(who + " is stopped until: kill -CONT " + id);
        if (!process.trouble.empty())
            say(who + " runs under curb, and " + plain(process.trouble) + "; " + nvml_on(process));
        if (process.elsewhere) say(who + " runs in another pid namespace, perhaps a container; " + nvml_on(process));
        if (!process.status) return;
        about_policy(who, process.status->policy);
        for (const ViewGpu &gpu : view_.gpus)
            for (const ViewUse &use : gpu.uses)
                if (&view_.processes[use.process] == &process && use.books) about_gpu(process, gpu, use);
    }

    void about_policy(const std::string &who, const control::PolicyStatus &policy) {
        const std::string error = policy.error.empty() ? "" : ": " + plain(policy.error);
        if (policy.unusable)
            say(who + " has a policy that cannot be used, so all that it asks for is refused" + error);
        else if (!policy.error.empty())
            say(who + " keeps to its last good policy, for the last edit is not in force" + error);
    }

    void about_gpu(const ViewProcess &process, const ViewGpu &gpu, const ViewUse &use) {
        const control::GpuStatus &books = *books_of(view_, use);
        const std::string who = process_label(process), id = std::to_string(process.pid);
        const std::string where = view_.gpus.size() > 1 ? " on " + gpu_label(view_, gpu) : "";
        if (is_over_cap(process, books))
            say(who + " holds " + format_human(books.held - *books.cap) + " more" + where + " than its cap of " +
                format_human(*books.cap) +
                (process.status->releasing ? ": a release is under way, and until it is under the cap"
                                           : ": until it is under it") +
                " new requests are refused");
        if (books.live_cap)
            say(who + " has a cap" + where + " that was set by curb cap: " + policy::format(*books.live_cap) +
                "; its policy's again: curb cap " + id + " --reset");
        about_waits(process, books, where);
        if (!process.status->policy.unusable) about_refusals(process, books, where);
    }

    void about_waits(const ViewProcess &process, const control::GpuStatus &books, const std::string &where) {
        const auto &waits = process.status->waits;
        const auto first = std::find_if(waits.begin(), waits.end(),
                                        [&](const control::Waiting &one) { return one.gpu == books.ordinal; });
        if (first == waits.end() || !has_waited_long(*first, now_)) return;
        say(process_label(process) + " waits" + where + " for " + wait_text(*first, process.pid, now_) +
            (books.waiting > 1 ? "; " + std::to_string(books.waiting - 1) + " more wait" : ""));
    }

    void about_refusals(const ViewProcess &process, const control::GpuStatus &books, const std::string &where) {
        const std::uint64_t times = control::refused(books);
        const auto &refusals = process.status->refusals;
        const auto last = std::find_if(refusals.rbegin(), refusals.rend(),
                                       [&](const control::Refusal &one) { return one.gpu == books.ordinal; });
        if (last == refusals.rend() || now_ - last->at > kNews || is_raised(books, *last)) return;
        say(process_label(process) + " was refused " + std::to_string(times) + (times == 1 ? " request" : " requests") +
            where + ", last " + clock_text(last->at, now_) + ": " +
            (last->bytes == 0 ? "code of unknown size" : format_human(last->bytes)) + " met " +
            policy::obstacle_text(last->why) + "; " + help(process.pid, books, *last));
    }

    [[nodiscard]] std::string nvml_on(const ViewProcess &process) const {
        const std::string says = nvml_says(view_, static_cast<std::size_t>(&process - view_.processes.data()));
        return says.empty() ? "NVML does not say what it holds" : says;
    }
    void say(std::string note) { out_.push_back(std::move(note)); }

    const View &view_;
    control::UnixMs now_;
    std::vector<std::string> out_;
};

}  // namespace

std::vector<std::string> ps_notes(const View &view, control::UnixMs now) { return Notes(view, now).done(); }

}  // namespace curb::cli
