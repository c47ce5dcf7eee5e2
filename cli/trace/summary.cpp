#include "summary.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <unordered_map>

namespace curb::cli {
namespace {

// Of equals the earlier, so that the list does not depend on the order of the offers.
bool larger(const Moment *a, const Moment *b) noexcept {
    return a->bytes != b->bytes ? a->bytes > b->bytes : std::less<>()(a, b);
}

// Keeps the kLargest largest.
void offer(std::vector<const Moment *> &largest, const Moment *one) {
    if (largest.size() == kLargest && !larger(one, largest.back())) return;
    largest.insert(std::upper_bound(largest.begin(), largest.end(), one, larger), one);
    if (largest.size() > kLargest) largest.pop_back();
}

std::optional<policy::Bytes> bounded(policy::Bytes limit) {
    return limit == policy::kUnbounded ? std::nullopt : std::optional(limit);
}

// Contexts and stacks are the driver's allocations.
bool is_by_program(const Moment &moment) noexcept {
    return moment.kind != policy::Kind::contexts && moment.kind != policy::Kind::stack;
}

// One GPU, walked along.
struct Walk {
    GpuSummary out;
    HeldByKind held;
    std::optional<policy::Bytes> cap, allowance;
    std::size_t peak_index = 0;
    std::map<std::int32_t, std::size_t> waiting;  // thread -> its wait

    void take(const Moment &moment, std::size_t index) {
        if (held.take(moment) && held.sum > out.peak) {
            out.peak = held.sum;
            out.peak_ns = moment.ns;
            out.at_peak = held.kinds;
            out.cap = cap;
            out.allowance = allowance;
            peak_index = index;
        }
        switch (moment.what) {
            case What::alloc:
                if (!is_by_program(moment)) break;
                ++out.allocations;
                offer(out.requests, &moment);
                break;
            case What::free: out.frees += is_by_program(moment) ? 1 : 0; break;
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
            case What::books:
            case What::step:
            case What::dropped: break;
        }
        out.at_end = held.sum;
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

using Live = std::unordered_map<std::uint64_t, const Moment *>;

void change(Live &live, const Moment &moment) {
    if (moment.pointer == 0) return;
    if (moment.what == What::alloc) live[moment.key()] = &moment;
    if (moment.what == What::free) live.erase(moment.key());
}

// Of one address space, which all GPUs of a process share.
void find_live(const Recording &recording, std::vector<Walk> &walks) {
    Live live;
    const auto &events = recording.events;
    for (std::size_t i = 0; i < events.size(); ++i) {
        change(live, events[i]);
        for (Walk &walk : walks) {
            if (walk.peak_index != i || walk.out.gpu != events[i].gpu || walk.out.peak == 0) continue;
            for (const auto &[key, one] : live)
                if (one->gpu == walk.out.gpu) offer(walk.out.held_at_peak, one);
        }
    }
    for (const auto &[key, one] : live)
        for (Walk &walk : walks) {
            if (walk.out.gpu != one->gpu || !is_by_program(*one)) continue;
            ++walk.out.live;
            walk.out.live_bytes += static_cast<policy::Bytes>(one->bytes);
        }
}

// Steps follow each other at once; the same trigger a while later is another release.
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

}  // namespace

Summary summarise(const Recording &recording) {
    std::vector<Walk> walks;
    std::array<int, kMostGpus> walk_of;
    walk_of.fill(-1);
    for (const int gpu : gpus_of(recording)) {
        walk_of[static_cast<std::size_t>(gpu)] = static_cast<int>(walks.size());
        Walk walk;
        walk.out.gpu = gpu;
        if (const auto *known = recording.gpu(gpu)) {
            walk.out.name = known->name;
            walk.out.uuid = known->uuid;
            walk.out.total = known->total;
        }
        walks.push_back(std::move(walk));
    }
    Summary out;
    for (std::size_t i = 0; i < recording.events.size(); ++i) {
        const Moment &moment = recording.events[i];
        if (moment.what == What::step)
            add_step(out.releases, recording, moment);
        else if (moment.what != What::dropped)
            walks[static_cast<std::size_t>(walk_of[moment.gpu])].take(moment, i);
    }
    find_live(recording, walks);
    for (Walk &walk : walks) out.gpus.push_back(std::move(walk.out));
    return out;
}

}  // namespace curb::cli
