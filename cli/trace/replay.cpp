#include "replay.hpp"

#include <algorithm>
#include <array>
#include <deque>
#include <unordered_map>
#include <unordered_set>

#include "policy/decisions/limit.hpp"
#include "policy/values/granule.hpp"

namespace curb::cli {
namespace {

using policy::Bytes;
using policy::kGranule;
using policy::kPoolUnit;
using policy::round_up;
using policy::Verdict;

constexpr std::uint64_t kMillisecond = 1'000'000;

constexpr Bytes positive(std::int64_t value) noexcept { return value > 0 ? static_cast<Bytes>(value) : 0; }
constexpr Bytes less(Bytes a, std::int64_t b) noexcept {
    if (b < 0) return policy::added(a, Bytes{0} - static_cast<Bytes>(b));
    return a - std::min(a, static_cast<Bytes>(b));
}

class Run {
  public:
    Run(const Recording &recording, const ReplayTerms &terms)
        : recording_(recording), terms_(terms), growth_(terms.gpu.growth) {
        allowance_ = policy::first_allowance(growth_);
        now_ = recording.first_ns;
        last_step_ms_ = now_ms();
    }

    Replayed of(int gpu, bool to_first_refusal) {
        for (const Moment &event : recording_.events) {
            if (event.gpu != gpu && !event.is_of_process()) continue;
            if (event.ns > now_) {
                if (!pending_.empty()) advance(event.ns);
                now_ = event.ns;
            }
            take(event);
            if (to_first_refusal && out_.refused != 0) return std::move(out_);
        }
        advance(~std::uint64_t{0});
        out_.allowance = allowance_;
        return std::move(out_);
    }

  private:
    // A waiting request. Its thread does nothing else meanwhile.
    struct Pending {
        const Moment *event;
        std::uint64_t began_ns;
    };

    [[nodiscard]] std::uint64_t now_ms() const noexcept { return now_ / kMillisecond; }
    [[nodiscard]] Bytes held() const noexcept {
        return less(less(recorded_.sum, absent_sum_), static_cast<std::int64_t>(given_back_));
    }
    [[nodiscard]] Bytes of_kind(policy::Kind kind) const noexcept {
        return recorded_.kinds[static_cast<std::size_t>(kind)];
    }
    // Returns the unused memory of pools, which a release would give back.
    [[nodiscard]] Bytes idle_pools() const noexcept {
        return less(less(of_kind(policy::Kind::pools), absent_of(policy::Kind::pools)),
                    static_cast<std::int64_t>(given_back_ + live_pools_));
    }

    void take(const Moment &event) {
        if (event.what == What::step) {
            fall_back();
            return;
        }
        if (event.is_of_process()) return;
        const Bytes before = held();
        recorded_.take(event);
        if (event.moves_memory()) undo(event);
        settle(event.kind);
        if (event.moves_memory() || event.what == What::refuse) {
            if (!pending_.empty() && defer(event)) return;
            happen(event);
        }
        if (held() < before && !pending_.empty()) retry();
        note_peak();
    }

    // Returns the bytes that are in the recorded figures and not in the replay; negative: those only in the replay.
    [[nodiscard]] std::int64_t absent_of(policy::Kind kind) const noexcept {
        return absent_[static_cast<std::size_t>(kind)];
    }
    void add_absent(policy::Kind kind, std::int64_t bytes) noexcept {
        std::int64_t &absent = absent_[static_cast<std::size_t>(kind)];
        absent = policy::plus(absent, bytes);
        absent_sum_ = policy::plus(absent_sum_, bytes);
    }
    // undo(): the event is in the recorded figures, but has not happened in the replay yet. redo(): now it has.
    void undo(const Moment &event) noexcept { add_absent(event.kind, event.charge); }
    void redo(const Moment &event) noexcept { add_absent(event.kind, -event.charge); }
    // Clamps absent_ and given_back_: memory that the recorded run itself gave back cannot be given back again.
    void settle(policy::Kind kind) noexcept {
        // No more of a kind can be absent than was recorded. (So ends the absence of graph memory: it has no address.)
        const std::int64_t too_much = absent_of(kind) - static_cast<std::int64_t>(of_kind(kind));
        if (too_much > 0) add_absent(kind, -too_much);
        if (given_back_ == 0) return;
        const Bytes there = less(of_kind(policy::Kind::pools), absent_of(policy::Kind::pools));
        given_back_ = std::min(given_back_, less(there, static_cast<std::int64_t>(live_pools_)));
    }
    // Defers an event of a waiting thread, or a free of its waiting allocation, until the wait ends. False for others.
    bool defer(const Moment &event) {
        int thread = event.thread;
        if (event.what == What::free) {
            const auto there = unborn_.find(event.key());
            if (there != unborn_.end()) thread = there->second;
        }
        if (!waits(thread)) return false;
        deferred_[thread].push_back(&event);
        if (event.what == What::alloc) unborn_[event.key()] = thread;
        return true;
    }
    void note_peak() {
        const Bytes now = held();
        if (now > out_.peak) {
            out_.peak = now;
            out_.peak_ns = now_;
        }
        if (terms_.gpu.cap && now > *terms_.gpu.cap) out_.over_cap = std::max(out_.over_cap, now - *terms_.gpu.cap);
    }

    void happen(const Moment &event) {
        if (event.what == What::free) return free(event);
        if (refused_by_device(event)) {
            ++out_.device_refused;
            return;
        }
        ++out_.requests;
        attempt({&event, now_}, true);
        note_peak();
    }

    [[nodiscard]] bool refused_by_device(const Moment &event) const noexcept {
        if (event.what != What::refuse) return false;
        return event.why() == policy::Limit::device || (terms_.total != 0 && positive(event.bytes) > terms_.total);
    }

    void free(const Moment &event) {
        if (!refused_.empty() && refused_.erase(event.key()) != 0) {
            // given_back_ has the growth that the pool did not make: cancel undo().
            if (event.kind == policy::Kind::pools) redo(event);
            settle(event.kind);
            return;
        }
        redo(event);
        if (event.kind == policy::Kind::pools)
            if (const auto block = pool_blocks_.find(event.pointer); block != pool_blocks_.end()) {
                live_pools_ -= std::min(live_pools_, block->second);
                pool_blocks_.erase(block);
            }
        settle(event.kind);
    }

    // Returns the bytes that libcurb.so would have charged.
    [[nodiscard]] Bytes asked(const Moment &event) const noexcept {
        const Bytes bytes = positive(event.bytes), took = positive(event.charge);
        if (event.what == What::refuse) return bytes;
        if (event.detail != 0 || event.kind == policy::Kind::contexts) return 0;  // reused; contexts are not refused
        if (event.kind == policy::Kind::pools) {
            if (bytes <= idle_pools()) return 0;
            return took != 0 ? std::max(took, round_up(bytes, kPoolUnit))
                             : std::min(round_up(bytes, kPoolUnit), round_up(given_back_, kPoolUnit));
        }
        const bool granules = event.kind == policy::Kind::plain || event.kind == policy::Kind::managed;
        return granules ? std::max(took, round_up(bytes, kGranule)) : took;
    }

    // Decides on a request. False if it waits. `first`: it was not waiting before.
    bool attempt(const Pending &request, bool first) {
        const Moment &event = *request.event;
        const Bytes bytes = asked(event);
        bool released = false;
        for (;;) {
            policy::Terms now = terms_now();
            now.may_wait = growth_.wait.count() > 0 &&
                           now_ - request.began_ns < static_cast<std::uint64_t>(growth_.wait.count()) * kMillisecond;
            now.released = released;
            switch (policy::decide(now, held(), bytes)) {
                case Verdict::grant: granted(request, first); return true;
                case Verdict::release_first: {
                    released = true;
                    const Bytes idle = idle_pools();
                    if (idle == 0) break;
                    given_back_ += idle;
                    ++out_.releases;
                    out_.released += idle;
                    break;
                }
                case Verdict::grow:
                    allowance_ = policy::after_step(growth_, allowance_);
                    last_step_ms_ = now_ms();
                    out_.steps.emplace_back(now_, allowance_);
                    break;
                case Verdict::wait:
                    if (first) {
                        ++out_.waits;
                        pending_.push_back(request);
                        if (event.what == What::alloc) unborn_[event.key()] = event.thread;
                    }
                    return false;
                case Verdict::refuse: refused(request, now, bytes, first); return true;
            }
        }
    }

    [[nodiscard]] policy::Terms terms_now() const noexcept {
        policy::Terms out;
        out.cap = terms_.gpu.cap;
        out.allowance = allowance_;
        if (const Bytes limit = policy::limit(out); limit != policy::kUnbounded)
            out.kept_for_driver = policy::driver_reserve(limit, of_kind(policy::Kind::overhead), 0);
        if (terms_.total != 0) {
            out.ever = policy::held_beside(growth_.keep_free, terms_.total);
            if (growth_.keep_free != 0) out.limit_beside_others = out.ever;
        }
        out.release_before_growth = terms_.release_before_growth;
        out.step_due = growth_.start && policy::until_step(growth_, now_ms(), last_step_ms_) == 0 &&
                       policy::after_step(growth_, allowance_) > allowance_;
        return out;
    }

    void end(const Pending &request, bool first) noexcept {
        if (!unborn_.empty()) unborn_.erase(request.event->key());
        if (first) return;
        out_.waited_ns += now_ - request.began_ns;
        out_.longest_wait_ns = std::max(out_.longest_wait_ns, now_ - request.began_ns);
    }

    void granted(const Pending &request, bool first) {
        const Moment &event = *request.event;
        end(request, first);
        if (event.what == What::refuse) {  // it is not known how long the program would have kept it
            if (event.bytes > 0) ++out_.served_now;
            return;
        }
        const Bytes idle = event.kind == policy::Kind::pools ? idle_pools() : 0;
        redo(event);
        if (event.kind != policy::Kind::pools || event.detail != 0) return;
        const Bytes bytes = positive(event.bytes);
        if (bytes <= idle)
            given_back_ += positive(event.charge);  // this pool need not grow
        else if (event.charge == 0)
            given_back_ -= std::min(given_back_, round_up(bytes - idle, kPoolUnit));
        live_pools_ += bytes;
        if (event.pointer != 0) pool_blocks_[event.pointer] = bytes;
        settle(event.kind);
    }

    void refused(const Pending &request, const policy::Terms &now, Bytes bytes, bool first) {
        const Moment &event = *request.event;
        end(request, first);
        if (!first) ++out_.waits_timed_out;
        ++out_.refused;
        out_.refused_bytes = policy::added(out_.refused_bytes, positive(event.bytes));
        if (out_.refusals.size() < kMostListed)
            out_.refusals.push_back({now_, positive(event.bytes), held(), policy::limit(now), event.kind,
                                     policy::limit_hit(now, held(), bytes), event.what == What::refuse,
                                     now_ - request.began_ns});
        if (event.what == What::refuse) return;
        if (event.pointer != 0) refused_.insert(event.key());
        if (event.kind != policy::Kind::pools) return;
        // The pool did not grow: it stays smaller by that until the recorded pool shrinks.
        redo(event);
        given_back_ += positive(event.charge);
    }

    // ---- waiting ----

    [[nodiscard]] bool waits(int thread) const noexcept {
        return std::any_of(pending_.begin(), pending_.end(),
                           [&](const Pending &one) { return one.event->thread == thread; });
    }
    // Tries the waiting requests again, oldest first. A thread whose wait is over catches up on its deferred events.
    void retry() {
        for (std::size_t i = 0; i < pending_.size();) {
            const Pending request = pending_[i];
            if (!attempt(request, false)) {
                ++i;
                continue;
            }
            pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(i));
            catch_up(request.event->thread);
            note_peak();
            i = 0;  // the deferred events may have freed memory
        }
    }
    void catch_up(int thread) {
        auto queue = deferred_.find(thread);
        while (queue != deferred_.end() && !queue->second.empty() && !waits(thread)) {
            const Moment *next = queue->second.front();
            queue->second.pop_front();
            happen(*next);
        }
        if (queue != deferred_.end() && queue->second.empty()) deferred_.erase(queue);
    }
    // Advances the time to `until`. On the way, waits time out and steps fall due.
    void advance(std::uint64_t until) {
        while (!pending_.empty()) {
            const auto wait_ns = static_cast<std::uint64_t>(growth_.wait.count()) * kMillisecond;
            std::uint64_t next = ~std::uint64_t{0};
            for (const Pending &one : pending_) next = std::min(next, one.began_ns + wait_ns);
            const std::uint64_t step =
                (last_step_ms_ + static_cast<std::uint64_t>(growth_.every.count())) * kMillisecond;
            if (growth_.start && step > now_) next = std::min(next, step);
            next = std::max(next, now_);
            if (next > until) return;
            now_ = next;
            retry();
        }
    }

    void fall_back() {
        const Bytes after = policy::fallen_back(growth_, allowance_, held());
        if (after == allowance_) return;
        allowance_ = after;
        last_step_ms_ = now_ms();
    }

    const Recording &recording_;
    const ReplayTerms &terms_;
    const policy::Growth &growth_;
    Replayed out_;

    std::uint64_t now_ = 0;
    Bytes allowance_ = policy::kUnbounded;
    std::uint64_t last_step_ms_ = 0;

    HeldByKind recorded_;
    std::array<std::int64_t, policy::kKinds> absent_{};
    std::int64_t absent_sum_ = 0;
    Bytes given_back_ = 0;  // by which pools are smaller in the replay
    Bytes live_pools_ = 0;  // of allocations from pools that are not freed
    std::unordered_map<std::uint64_t, Bytes> pool_blocks_;
    std::unordered_set<std::uint64_t> refused_;  // keys of allocations that the replay refused
    std::vector<Pending> pending_;
    std::unordered_map<std::uint64_t, int> unborn_;  // key of a waiting allocation -> its thread
    std::unordered_map<int, std::deque<const Moment *>> deferred_;
};

}  // namespace

Replayed replay(const Recording &recording, int gpu, const ReplayTerms &terms, bool to_first_refusal) {
    return Run(recording, terms).of(gpu, to_first_refusal);
}

std::optional<Bytes> smallest_cap(const Recording &recording, int gpu, Bytes total) {
    ReplayTerms terms;
    terms.total = total;
    const auto serves = [&](Bytes mebibytes) {
        terms.gpu.cap = mebibytes * policy::MiB;
        const Replayed out = replay(recording, gpu, terms, true);
        return out.refused == 0 && out.over_cap == 0;
    };
    // Begin at the peak: usually a little more is enough, for requests that were refused then and for the driver.
    constexpr Bytes kMost = Bytes{1} << 43;
    Bytes most = replay(recording, gpu, terms).peak / policy::MiB + 1;
    while (!serves(most)) {
        most += std::max<Bytes>(most / 8, 64);
        if (most > kMost) return std::nullopt;
    }
    Bytes least = 0;  // too small
    while (most - least > 1) {
        const Bytes middle = least + (most - least) / 2;
        (serves(middle) ? most : least) = middle;
    }
    return most * policy::MiB;
}

}  // namespace curb::cli
