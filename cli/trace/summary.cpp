#include "trace/summary.hpp"

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <map>
#include <unordered_map>

#include "policy/values/words.hpp"
#include "terminal/format.hpp"
#include "terminal/text_width.hpp"

namespace curb::cli {
namespace {

// Orders by size, then by time, so that the result of offer() does not depend on the order of the calls.
bool larger(const Moment *a, const Moment *b) noexcept {
    return a->bytes != b->bytes ? a->bytes > b->bytes : std::less<>()(a, b);
}

// Adds one. Keeps the kLargest largest.
void offer(std::vector<const Moment *> &largest, const Moment *one) {
    if (largest.size() == kLargest && !larger(one, largest.back())) return;
    largest.insert(std::upper_bound(largest.begin(), largest.end(), one, larger), one);
    if (largest.size() > kLargest) largest.pop_back();
}

// False for contexts, stacks and overhead: the driver allocates them.
bool is_by_program(const Moment &moment) noexcept {
    return moment.kind != policy::Kind::contexts && moment.kind != policy::Kind::stack &&
           moment.kind != policy::Kind::overhead;
}

// Sums up the events of one GPU.
struct Walk {
    GpuSummary out;
    HeldByKind held;
    std::optional<policy::Bytes> cap, allowance;
    std::size_t peak_index = 0;
    std::map<std::int32_t, std::size_t> waiting;                // thread -> its wait
    std::unordered_map<std::int32_t, const Moment *> last;      // thread -> its last allocation
    std::unordered_map<const Moment *, const Moment *> stacks;  // allocation -> its stack

    void take(const Moment &moment, std::size_t index) {
        if (held.take(moment) && held.sum > out.peak) note_peak(moment, index);
        switch (moment.what) {
            case What::alloc:
                last[moment.thread] = &moment;
                if (is_by_program(moment)) note_allocation(moment);
                break;
            case What::free: out.frees += std::size_t{is_by_program(moment)}; break;
            case What::refuse:
                out.refusals.push_back(&moment);
                out.refused_bytes = policy::added(out.refused_bytes, static_cast<policy::Bytes>(moment.bytes));
                offer(out.requests, &moment);
                end_wait(moment, Waited::End::refused);
                break;
            case What::wait:
                waiting[moment.thread] = out.waits.size();
                out.waits.push_back({moment.ns, moment.ns, &moment, Waited::End::unknown});
                break;
            case What::granted:
                if (!end_wait(moment, Waited::End::granted))
                    out.waits.push_back({moment.began_ns(), moment.ns, &moment, Waited::End::granted});
                break;
            case What::allowance:
                if (allowance && bounded(moment.limit()) > allowance) ++out.growth_steps;
                allowance = bounded(moment.limit());
                break;
            case What::policy:
                cap = bounded(moment.limit());
                allowance = bounded(moment.of_kind);
                break;
            case What::stack: note_stack(moment); break;
            default: break;  // of the process, or in `held` already
        }
        out.at_end = held.sum;
    }

    void note_peak(const Moment &moment, std::size_t index) {
        out.peak = held.sum;
        out.peak_ns = moment.ns;
        out.at_peak = held.kinds;
        out.cap = cap;
        out.allowance = allowance;
        peak_index = index;
    }

    void note_allocation(const Moment &moment) {
        ++out.allocations;
        offer(out.requests, &moment);
    }

    void note_stack(const Moment &moment) {
        const auto made = last.find(moment.thread);
        if (made != last.end() && made->second->pointer == moment.pointer) stacks[made->second] = &moment;
    }

    bool end_wait(const Moment &moment, Waited::End end) {
        const auto there = waiting.find(moment.thread);
        if (there == waiting.end() || out.waits[there->second].moment->bytes != moment.bytes) return false;
        Waited &wait = out.waits[there->second];
        wait.ended_ns = moment.ns;
        wait.end = end;
        if (end == Waited::End::granted) wait.moment = &moment;
        waiting.erase(there);
        return true;
    }
};

// The walks of all GPUs of a recording.
struct Walks {
    std::vector<Walk> all;
    std::vector<std::size_t> by_gpu;

    explicit Walks(const Recording &recording) {
        const std::vector<int> gpus = gpus_of(recording);
        if (!gpus.empty()) by_gpu.resize(static_cast<std::size_t>(gpus.back()) + 1);
        for (const int gpu : gpus) {
            by_gpu[static_cast<std::size_t>(gpu)] = all.size();
            Walk &walk = all.emplace_back();
            if (const auto *known = recording.gpu(gpu)) static_cast<control::trace::Gpu &>(walk.out) = *known;
            walk.out.gpu = gpu;
        }
    }
    // Precondition: the event is not of the process.
    Walk &of(const Moment &moment) { return all[by_gpu[moment.gpu]]; }
};

using Live = std::unordered_map<std::uint64_t, const Moment *>;

void change(Live &live, const Moment &moment) {
    if (moment.pointer == 0) return;
    if (moment.what == What::alloc) live[moment.key()] = &moment;
    if (moment.what == What::free) live.erase(moment.key());
}

// Sums up the live allocations on the GPU by call stack.
std::vector<Caller> callers_of(const Live &live, const Walk &walk) {
    std::map<std::uint32_t, Caller> by_text;
    for (const auto &[key, one] : live) {
        if (one->gpu != walk.out.gpu || !is_by_program(*one)) continue;
        const auto stack = walk.stacks.find(one);
        const bool is_known = stack != walk.stacks.end();
        Caller &caller = by_text[is_known ? stack->second->text : 0];
        caller.stack = is_known ? stack->second : nullptr;
        caller.bytes = policy::added(caller.bytes, static_cast<policy::Bytes>(one->bytes));
        ++caller.count;
    }
    std::vector<Caller> out;
    for (const auto &[text, caller] : by_text) out.push_back(caller);
    std::stable_sort(out.begin(), out.end(), [](const Caller &a, const Caller &b) {
        return std::pair(a.stack != nullptr, a.bytes) > std::pair(b.stack != nullptr, b.bytes);
    });
    return out;
}

// Finds the allocations that live at each GPU's peak and at the end. All GPUs of a process share one address space.
void find_live(const Recording &recording, Walks &walks) {
    Live live;
    const auto &events = recording.events;
    for (std::size_t i = 0; i < events.size(); ++i) {
        change(live, events[i]);
        if (events[i].is_of_process()) continue;
        Walk &walk = walks.of(events[i]);
        if (walk.peak_index != i || walk.out.peak == 0) continue;
        for (const auto &[key, one] : live)
            if (one->gpu == walk.out.gpu) offer(walk.out.held_at_peak, one);
        if (!walk.stacks.empty()) walk.out.callers_at_peak = callers_of(live, walk);
    }
    for (const auto &[key, one] : live) {
        if (!is_by_program(*one)) continue;
        Walk &walk = walks.of(*one);
        ++walk.out.live;
        walk.out.live_bytes += static_cast<policy::Bytes>(one->bytes);
    }
}

// Adds a step to its release. The same trigger after kGap, or the same step again, is another release.
void add_step(std::vector<Release> &releases, const Recording &recording, const Moment &moment) {
    constexpr std::uint64_t kGap = kSecond / 10;
    const auto same = [&](const Release &last) {
        return last.trigger == recording.text(moment) && moment.began_ns() <= last.ended_ns + kGap &&
               std::none_of(last.steps.begin(), last.steps.end(),
                            [&](const auto &step) { return step.first == moment.step(); });
    };
    if (releases.empty() || !same(releases.back()))
        releases.push_back({moment.began_ns(), moment.ns, recording.text(moment), {}, 0});
    Release &release = releases.back();
    release.ended_ns = std::max(release.ended_ns, moment.ns);
    release.steps.emplace_back(moment.step(), moment.bytes);
    release.bytes = policy::plus(release.bytes, moment.bytes);
}

void add_absence(std::vector<Absence> &absences, const Recording &recording, const Moment &moment) {
    const auto bytes = static_cast<policy::Bytes>(moment.bytes);
    const bool is_out = !absences.empty() && !absences.back().wake_ns;
    if (moment.what == What::out) {
        const std::string how = recording.text(moment);
        if (!is_out) {
            absences.push_back({moment.ns, recording.last_ns, how, bytes, moment.duration_ns(), std::nullopt});
        } else if (how == "deep") {
            absences.back().how = "nap";
            absences.back().bytes = policy::plus(absences.back().bytes, moment.bytes);
            absences.back().out_ns += moment.duration_ns();
        }
        return;
    }
    if (!is_out) absences.push_back({recording.first_ns, moment.ns, "", bytes, 0, std::nullopt});
    absences.back().ended_ns = std::max(moment.ns, absences.back().began_ns);
    absences.back().wake_ns = moment.duration_ns();
}

// ---- text ----

std::string times(std::size_t n) { return n == 1 ? "once" : std::to_string(n) + " times"; }

std::string stamp(std::int64_t unix_ns, const char *format) {
    return local_time(unix_ns / static_cast<std::int64_t>(kSecond), format);
}

// Returns "Out of its GPUs 3 times, by naps and turns of others, 2 min 5 s together, with at most 2.5 GiB in host
// memory; the moves out took 1.2 s together; the way back took at most 410 ms."
std::string absences_text(const std::vector<Absence> &absences) {
    std::uint64_t together = 0, longest = 0, out = 0;
    policy::Bytes most = 0;
    std::size_t naps = 0, turns = 0, suspends = 0;
    for (const Absence &one : absences) {
        together += one.ended_ns - one.began_ns;
        out += one.out_ns;
        if (!one.is_turn()) longest = std::max(longest, one.wake_ns.value_or(0));
        most = std::max(most, one.bytes);
        naps += one.how == "nap" || one.how == "light nap";
        turns += one.is_turn();
        suspends += one.how == "suspend";
    }
    std::vector<std::string> by;
    for (const auto &[count, one, several] : {std::tuple(naps, "a nap", "naps"),
                                              {turns, "a turn of others", "turns of others"},
                                              {suspends, "a suspend", "suspends"}})
        if (count != 0) by.emplace_back(count == 1 ? one : several);
    return fmt::format("Out of its GPUs {}, {}{} together, with at most {} in host memory{}{}.", times(absences.size()),
                       by.empty() ? "" : "by " + policy::joined(by, " and ") + ", ", span_text(together),
                       policy::format_human(most),
                       out == 0 ? "" : "; the moves out took " + span_text(out) + " together",
                       longest == 0 ? "" : "; the way back took at most " + span_text(longest));
}

// Returns "refused 2 times, for the cap".
std::string refused_text(const GpuSummary &gpu) {
    std::map<policy::Limit, std::size_t> by;
    for (const Moment *one : gpu.refusals) ++by[one->why()];
    std::string out = "refused " + times(gpu.refusals.size()) + ", for ";
    bool first = true;
    for (const auto &[why, count] : by) {
        out += std::exchange(first, false) ? "" : ", ";
        out += policy::limit_text(why);
        if (by.size() > 1) out += " " + times(count);
    }
    return out;
}

}  // namespace

Summary summarise(const Recording &recording) {
    Walks walks(recording);
    Summary out;
    for (std::size_t i = 0; i < recording.events.size(); ++i) {
        const Moment &moment = recording.events[i];
        if (moment.what == What::step)
            add_step(out.releases, recording, moment);
        else if (moment.what == What::out || moment.what == What::back)
            add_absence(out.absences, recording, moment);
        else if (!moment.is_of_process())
            walks.of(moment).take(moment, i);
    }
    find_live(recording, walks);
    for (Walk &walk : walks.all) out.gpus.push_back(std::move(walk.out));
    return out;
}

std::vector<std::string> calls_of(const std::string &stack) {
    constexpr std::string_view kBetween = " < ";
    std::vector<std::string> out;
    for (std::size_t begin = 0; begin < stack.size();) {
        const std::size_t end = std::min(stack.find(kBetween, begin), stack.size());
        std::string call = stack.substr(begin, end - begin);
        const std::size_t plus = call.find('+');  // before the offset; mangled names have no '+'
        if (call.starts_with("_Z") && plus != std::string::npos) {
            int status = 0;
            char *name = abi::__cxa_demangle(call.substr(0, plus).c_str(), nullptr, nullptr, &status);
            if (name && status == 0) call.replace(0, plus, policy::plain(name));
            std::free(name);
        }
        out.push_back(std::move(call));
        begin = end + kBetween.size();
    }
    return out;
}

std::string gpu_name(int gpu) { return fmt::format("cuda:{}", gpu); }

std::string pointer_text(std::uint64_t pointer) { return fmt::format("{:#x}", pointer); }

std::int64_t local_begin_ns(const Recording &recording) {
    if (recording.header.unix_ns <= 0) return 0;
    constexpr auto kOneSecond = static_cast<std::int64_t>(kSecond);
    const std::time_t seconds = recording.header.unix_ns / kOneSecond;
    std::tm local{};
    ::localtime_r(&seconds, &local);
    return ::timegm(&local) * kOneSecond + recording.header.unix_ns % kOneSecond;
}

std::string time_of_day(std::int64_t local_ns, std::uint64_t step_ns, bool days) {
    const std::time_t seconds = local_ns / static_cast<std::int64_t>(kSecond);
    const auto ns = static_cast<std::uint64_t>(local_ns) % kSecond;
    std::tm time{};
    ::gmtime_r(&seconds, &time);
    std::string out = days ? fmt::format("{:02}-{:02} ", time.tm_mon + 1, time.tm_mday) : "";
    out += fmt::format("{:02}:{:02}", time.tm_hour, time.tm_min);
    if (step_ns % (60 * kSecond) != 0) out += fmt::format(":{:02}", time.tm_sec);
    if (step_ns >= kSecond) return out;
    return out + (step_ns >= kSecond / 1000 ? fmt::format(".{:03}", ns / 1'000'000) : fmt::format(".{:06}", ns / 1000));
}

bool has_days(const Recording &recording) {
    constexpr std::uint64_t kDay = 86'400 * kSecond;
    const auto begin = static_cast<std::uint64_t>(local_begin_ns(recording));
    return (begin + recording.first_ns) / kDay != (begin + recording.last_ns) / kDay;
}

std::string clock_text(const Recording &recording, std::uint64_t ns) {
    constexpr std::uint64_t kShort = 10 * kSecond;
    const auto at = static_cast<std::int64_t>(std::min(ns, ~std::uint64_t{0} >> 2));
    return time_of_day(local_begin_ns(recording) + at,
                       recording.last_ns - recording.first_ns < kShort ? kSecond / 1000 : kSecond, has_days(recording));
}

std::string date_text(const Recording &recording) {
    return recording.header.unix_ns > 0 ? stamp(recording.header.unix_ns, "%Y-%m-%d %H:%M:%S %Z") : std::string();
}

std::string cause_text(const Absence &absence) {
    return absence.how.empty() ? "" : "a " + absence.how + (absence.is_turn() ? " of others" : "");
}

std::string way_back_text(const Absence &absence) {
    if (!absence.wake_ns) return {};
    return (absence.is_turn() ? "a call waited " : "the way back took ") + span_text(*absence.wake_ns);
}

std::string span_text(std::uint64_t ns) {
    const auto exact = static_cast<double>(ns);
    const std::uint64_t seconds = ns / kSecond;
    if (ns < 1'000'000) return fmt::format("{:.0f} us", exact / 1e3);
    if (ns < kSecond) return fmt::format("{:.0f} ms", exact / 1e6);
    if (seconds < 60) return fmt::format("{:.1f} s", exact / 1e9);
    if (seconds < 3600) return fmt::format("{} min {} s", seconds / 60, seconds % 60);
    return fmt::format("{} h {} min", seconds / 3600, seconds / 60 % 60);
}

std::vector<std::string> sentences(const Recording &recording, const Summary &summary) {
    std::vector<std::string> out;
    for (const GpuSummary &gpu : summary.gpus) {
        if (!is_used(gpu)) continue;
        std::string text =
            fmt::format("Peak {}{} at {} on {}; {}", policy::format_human(gpu.peak),
                        gpu.cap ? " of " + policy::format_human(*gpu.cap) : "", clock_text(recording, gpu.peak_ns),
                        gpu_name(gpu.gpu), gpu.refusals.empty() ? "nothing was refused" : refused_text(gpu));
        if (!gpu.waits.empty()) {
            std::uint64_t longest = 0;
            for (const Waited &wait : gpu.waits) longest = std::max(longest, wait.ended_ns - wait.began_ns);
            text += "; waited for room " + times(gpu.waits.size()) + ", at most " + span_text(longest);
        }
        if (gpu.growth_steps != 0) text += "; grew " + times(gpu.growth_steps);
        out.push_back(text + ".");
    }
    std::map<std::string, std::pair<std::size_t, std::int64_t>> by_trigger;
    for (const Release &release : summary.releases) {
        auto &[count, bytes] = by_trigger[release.trigger];
        ++count;
        bytes = policy::plus(bytes, release.bytes);
    }
    for (const auto &[trigger, sum] : by_trigger) {
        const std::string how = trigger.empty() ? std::string("released") : "on " + trigger;
        out.push_back(control::size_text(sum.second) + " came back " + how +
                      (sum.first == 1 ? "." : " (" + times(sum.first) + ")."));
    }
    if (!summary.absences.empty()) out.push_back(absences_text(summary.absences));
    return out;
}

}  // namespace curb::cli
