#include "trace/replay.hpp"

#include <algorithm>
#include <array>
#include <deque>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "policy/decisions/limit.hpp"
#include "policy/values/granule.hpp"
#include "trace/pool_units.hpp"

namespace curb::cli {
namespace {

using policy::Bytes;
using policy::kGranule;
using policy::kPoolUnit;
using policy::round_up;
using policy::Verdict;

constexpr std::uint64_t kMillisecond = 1'000'000, kNever = ~std::uint64_t{0};

constexpr Bytes positive(std::int64_t value) noexcept { return value > 0 ? static_cast<Bytes>(value) : 0; }
constexpr Bytes less(Bytes a, std::int64_t b) noexcept {
    if (b < 0) return policy::added(a, Bytes{0} - static_cast<Bytes>(b));
    return a - std::min(a, static_cast<Bytes>(b));
}

class Process;

// The processes of a job on one GPU, and its clock.
class Job {
  public:
    explicit Job(std::span<const Rank> ranks);
    ReplayedJob run(bool to_first_refusal);

    [[nodiscard]] std::uint64_t now() const noexcept { return now_; }
    // Returns what all processes hold.
    [[nodiscard]] Bytes held() const noexcept;
    // Returns what the other processes hold or keep for the driver.
    [[nodiscard]] Bytes others(const Process &than) const noexcept;
    // Has the other processes release their unused memory. False if they have none.
    bool others_release(const Process &than);
    // Tries all waiting requests again.
    void retry();
    // A process now holds `now` instead of `before`.
    void note_held(Bytes before, Bytes now) noexcept {
        held_ += now - before;
        if (held_ <= peak_) return;
        peak_ = held_;
        peak_ns_ = now_;
    }
    // The cost of a context, as far as the job knows it.
    Bytes context_cost = 0;

  private:
    void advance(std::uint64_t until);

    std::vector<Process> processes_;
    std::int64_t began_unix_ns_ = 0;
    std::uint64_t now_ = 0;  // since the first trace began
    Bytes held_ = 0, peak_ = 0;
    std::uint64_t peak_ns_ = 0;
};

class Process {
  public:
    // `offset`: when its trace began, on the clock of the job.
    Process(Job &job, const Rank &rank, std::uint64_t offset)
        : job_(job), recording_(*rank.recording), terms_(rank.terms), gpu_(rank.gpu), offset_(offset) {
        allowance_ = policy::first_allowance(growth());
        last_step_ms_ = (offset_ + recording_.first_ns) / kMillisecond;
        find_next();
    }

    // Returns the time of the next event; kNever: there is none.
    [[nodiscard]] std::uint64_t next_ns() const noexcept {
        return next_ == recording_.events.size() ? kNever : offset_ + recording_.events[next_].ns;
    }
    void take_next() {
        const Moment &event = recording_.events[next_++];
        take(event);
        find_next();
    }
    // Returns the time at which a wait is over or a growth step due; kNever: nothing waits.
    [[nodiscard]] std::uint64_t due_ns() const noexcept {
        std::uint64_t next = kNever;
        if (pending_.empty()) return next;
        const auto wait_ns = static_cast<std::uint64_t>(growth().wait.count()) * kMillisecond;
        for (const Pending &one : pending_) next = std::min(next, one.began_ns + wait_ns);
        const std::uint64_t step = (last_step_ms_ + static_cast<std::uint64_t>(growth().every.count())) * kMillisecond;
        return growth().start && step > job_.now() ? std::min(next, step) : next;
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
    [[nodiscard]] Bytes held() const noexcept {
        if (ended_) return 0;
        return less(less(recorded_.sum, absent_sum_), static_cast<std::int64_t>(given_back_));
    }
    // Returns what it keeps of the job's cap for the driver.
    [[nodiscard]] Bytes kept() const noexcept {
        if (!terms_.gpu.job_cap || held() == 0) return 0;
        return kept_under(std::min(policy::limit(terms_.gpu.cap, allowance_), *terms_.gpu.job_cap));
    }
    // Gives back the unused memory of pools. False if there is none.
    bool release() {
        const Bytes unused = unused_pools();
        if (unused == 0) return false;
        given_back_ += unused;
        ++out_.releases;
        out_.released += unused;
        note_peak();
        return true;
    }
    [[nodiscard]] const Replayed &so_far() const noexcept { return out_; }
    Replayed done() && {
        out_.allowance = allowance_;
        return std::move(out_);
    }

  private:
    // A waiting request. Its thread does nothing else meanwhile.
    struct Pending {
        const Moment *event;
        std::uint64_t began_ns;
    };

    void find_next() noexcept {
        const auto &events = recording_.events;
        while (next_ != events.size() && events[next_].gpu != gpu_ && !events[next_].is_of_process()) ++next_;
    }
    [[nodiscard]] const policy::Growth &growth() const noexcept { return terms_.gpu.growth; }
    [[nodiscard]] std::uint64_t now_ms() const noexcept { return job_.now() / kMillisecond; }
    // Returns the time on the clock of its trace.
    [[nodiscard]] std::uint64_t now() const noexcept { return job_.now() - offset_; }
    [[nodiscard]] Bytes kept_under(Bytes cap) const noexcept {
        return policy::driver_reserve(cap, of_kind(policy::Kind::overhead), heap_);
    }
    [[nodiscard]] Bytes of_kind(policy::Kind kind) const noexcept {
        return recorded_.kinds[static_cast<std::size_t>(kind)];
    }
    // Returns the unused memory of pools, which a release would give back.
    [[nodiscard]] Bytes unused_pools() const noexcept {
        return less(less(of_kind(policy::Kind::pools), absent_of(policy::Kind::pools)),
                    static_cast<std::int64_t>(given_back_ + units_.in_use()));
    }

    void take(const Moment &event) {
        if (event.what == What::step) fall_back();
        if (event.what == What::end) {
            ended_ = true;
            note_peak();
            job_.retry();
        }
        if (event.is_of_process() || ended_) return;
        const Bytes before = held();
        recorded_.take(event);
        has_context_ |= event.what == What::books && of_kind(policy::Kind::contexts) != 0;
        if (event.moves_memory()) undo(event);
        settle(event.kind);
        if (event.moves_memory() || event.what == What::refuse || event.what == What::heap) {
            if (!pending_.empty() && defer(event)) return;
            happen(event);
        }
        note_peak();
        if (held() < before) job_.retry();
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
        given_back_ = std::min(given_back_, less(there, static_cast<std::int64_t>(units_.live())));
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
            out_.peak_ns = this->now();
        }
        job_.note_held(std::exchange(noted_, now), now);
        Bytes cap = terms_.gpu.cap.value_or(policy::kUnbounded);
        if (terms_.gpu.job_cap)
            cap = std::min(cap, less(*terms_.gpu.job_cap, static_cast<std::int64_t>(job_.others(*this))));
        // curb releases before it refuses code.
        if (now > cap && !ended_ && !release()) out_.over_cap = std::max(out_.over_cap, now - cap);
    }

    void happen(const Moment &event) {
        if (event.what == What::free) return free(event);
        if (refused_by_device(event)) {
            ++out_.device_refused;
            return;
        }
        ++out_.requests;
        attempt({&event, job_.now()}, true);
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
                units_.remove(event.pointer, block->second);
                pool_blocks_.erase(block);
            }
        settle(event.kind);
    }

    // True for a context whose cost curb does not know before it is there: no cap of the process can refuse it.
    [[nodiscard]] bool is_first_context(const Moment &event) const noexcept {
        return event.what == What::alloc && event.kind == policy::Kind::contexts && !has_context_;
    }

    // Returns the bytes that libcurb.so would have reserved.
    [[nodiscard]] Bytes asked(const Moment &event) const {
        const Bytes bytes = positive(event.bytes), took = positive(event.charge);
        if (event.what == What::refuse) return bytes;
        if (event.what == What::heap) return less(bytes, static_cast<std::int64_t>(heap_));
        if (event.detail != 0) return 0;  // reused
        if (is_first_context(event)) {
            if (!terms_.gpu.job_cap) return 0;
            return (job_.context_cost != 0 ? job_.context_cost : policy::kContext) + kept_under(*terms_.gpu.job_cap);
        }
        switch (event.kind) {
            case policy::Kind::pools:
                if (took != 0) return std::max(took, round_up(bytes, kPoolUnit));
                // Served from memory that the pool had. What a release has given back, the pool takes again.
                return std::min({given_back_, round_up(bytes, kPoolUnit), units_.unused_under(event.pointer, bytes)});
            case policy::Kind::graphs: return bytes;
            case policy::Kind::plain:
            case policy::Kind::managed:
            case policy::Kind::arrays: return std::max(took, round_up(bytes, kGranule));
            default: return took;
        }
    }

    // Decides on a request. False if it waits. `first`: it was not waiting before.
    bool attempt(const Pending &request, bool first) {
        const Moment &event = *request.event;
        bool released = false;
        for (;;) {
            const Bytes bytes = asked(event);  // more after a release of pools
            policy::Terms now = terms_for(event);
            now.may_wait =
                growth().wait.count() > 0 &&
                job_.now() - request.began_ns < static_cast<std::uint64_t>(growth().wait.count()) * kMillisecond;
            now.released = released;
            switch (policy::decide(now, held(), bytes)) {
                case Verdict::grant: granted(request, first); return true;
                case Verdict::release_first:
                    released = true;
                    release();
                    break;
                case Verdict::grow:
                    allowance_ = policy::after_step(growth(), allowance_);
                    last_step_ms_ = now_ms();
                    out_.steps.emplace_back(this->now(), allowance_);
                    break;
                case Verdict::wait:
                    if (others_released(now, bytes)) break;
                    if (first) {
                        ++out_.waits;
                        pending_.push_back(request);
                        if (event.what == What::alloc) unborn_[event.key()] = event.thread;
                    }
                    return false;
                case Verdict::refuse:
                    if (others_released(now, bytes)) break;
                    refused(request, now, bytes, first);
                    return true;
            }
        }
    }

    // Has the other processes of the job release memory, if the request exceeds the cap of the job.
    bool others_released(const policy::Terms &now, Bytes bytes) {
        return now.job_cap != 0 && bytes <= now.alone && policy::limit_hit(now, held(), bytes) == policy::Limit::job &&
               job_.others_release(*this);
    }

    [[nodiscard]] policy::Terms terms_for(const Moment &event) const noexcept {
        policy::Terms out;
        const bool by_job_alone = is_first_context(event);
        if (!by_job_alone) {
            out.cap = terms_.gpu.cap;
            out.allowance = allowance_;
        }
        const Bytes own = policy::limit(out);
        if (own != policy::kUnbounded) out.kept_for_driver = kept_under(own);
        if (terms_.gpu.job_cap) {
            policy::lay_job_over(out, *terms_.gpu.job_cap, job_.others(*this));
            out.kept_for_driver = by_job_alone ? 0 : kept_under(std::min(own, *terms_.gpu.job_cap));
        }
        if (terms_.total != 0) {
            out.ever = policy::held_beside(growth().keep_free, terms_.total);
            if (growth().keep_free != 0) out.limit_beside_others = out.ever;
        }
        out.release_before_growth = terms_.release_before_growth;
        out.step_due = growth().start && policy::until_step(growth(), now_ms(), last_step_ms_) == 0 &&
                       policy::after_step(growth(), allowance_) > allowance_;
        return out;
    }

    void end(const Pending &request, bool first) noexcept {
        if (!unborn_.empty()) unborn_.erase(request.event->key());
        if (first) return;
        out_.waited_ns += job_.now() - request.began_ns;
        out_.longest_wait_ns = std::max(out_.longest_wait_ns, job_.now() - request.began_ns);
    }

    void granted(const Pending &request, bool first) {
        const Moment &event = *request.event;
        end(request, first);
        if (event.what == What::refuse) {  // it is not known how long the program would have kept it
            if (event.bytes > 0) ++out_.served_now;
            return;
        }
        if (event.what == What::heap) {
            heap_ = positive(event.bytes);
            return;
        }
        const bool is_context = event.kind == policy::Kind::contexts && event.charge > 0;
        has_context_ |= is_context;
        if (is_context) job_.context_cost = positive(event.charge);
        const Bytes taken_again = event.charge == 0 ? asked(event) : 0;
        redo(event);
        if (event.kind != policy::Kind::pools || event.detail != 0) return;
        given_back_ -= std::min(given_back_, taken_again);
        const Bytes bytes = positive(event.bytes);
        if (event.pointer != 0 && pool_blocks_.try_emplace(event.pointer, bytes).second)
            units_.add(event.pointer, bytes);
        settle(event.kind);
    }

    void refused(const Pending &request, const policy::Terms &now, Bytes bytes, bool first) {
        const Moment &event = *request.event;
        end(request, first);
        if (!first) ++out_.waits_timed_out;
        ++out_.refused;
        out_.refused_bytes = policy::added(out_.refused_bytes, positive(event.bytes));
        if (out_.refusals.size() < kMostListed) {
            const policy::Limit why = policy::limit_hit(now, held(), bytes);
            const bool by_job = why == policy::Limit::job;  // then the figures are those of the job
            out_.refusals.push_back({this->now(), positive(event.bytes), by_job ? job_.held() : held(),
                                     by_job ? now.job_cap : policy::limit(now), event.kind, why,
                                     event.what == What::refuse, job_.now() - request.began_ns});
        }
        if (!event.moves_memory()) return;
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
    void catch_up(int thread) {
        auto queue = deferred_.find(thread);
        while (queue != deferred_.end() && !queue->second.empty() && !waits(thread)) {
            const Moment *next = queue->second.front();
            queue->second.pop_front();
            happen(*next);
        }
        if (queue != deferred_.end() && queue->second.empty()) deferred_.erase(queue);
    }
    void fall_back() {
        const Bytes after = policy::fallen_back(growth(), allowance_, held());
        if (after == allowance_) return;
        allowance_ = after;
        last_step_ms_ = now_ms();
    }

    Job &job_;
    const Recording &recording_;
    const ReplayTerms &terms_;
    const int gpu_;
    const std::uint64_t offset_;
    std::size_t next_ = 0;  // event
    Replayed out_;

    Bytes allowance_ = policy::kUnbounded;
    std::uint64_t last_step_ms_ = 0;
    bool has_context_ = false, ended_ = false;
    Bytes heap_ = 0;   // of kernels, above the driver's default
    Bytes noted_ = 0;  // held at the last note_peak()

    HeldByKind recorded_;
    std::array<std::int64_t, policy::kKinds> absent_{};
    std::int64_t absent_sum_ = 0;
    Bytes given_back_ = 0;  // by which pools are smaller in the replay
    PoolUnits units_;
    std::unordered_map<std::uint64_t, Bytes> pool_blocks_;
    std::unordered_set<std::uint64_t> refused_;  // keys of allocations that the replay refused
    std::vector<Pending> pending_;
    std::unordered_map<std::uint64_t, int> unborn_;  // key of a waiting allocation -> its thread
    std::unordered_map<int, std::deque<const Moment *>> deferred_;
};

Job::Job(std::span<const Rank> ranks) {
    processes_.reserve(ranks.size());  // they refer to the job, and their owner must not move
    const auto began = [](const Rank &rank) { return rank.recording->header.unix_ns; };
    // Without a time of day, all begin together.
    const bool is_timed = std::all_of(ranks.begin(), ranks.end(), [=](const Rank &rank) { return began(rank) > 0; });
    if (is_timed && !ranks.empty())
        began_unix_ns_ = began(*std::min_element(ranks.begin(), ranks.end(),
                                                 [=](const Rank &a, const Rank &b) { return began(a) < began(b); }));
    for (const Rank &rank : ranks)
        processes_.emplace_back(*this, rank, is_timed ? static_cast<std::uint64_t>(began(rank) - began_unix_ns_) : 0);
}

Bytes Job::held() const noexcept {
    Bytes out = 0;
    for (const Process &one : processes_) out = policy::added(out, one.held());
    return out;
}

Bytes Job::others(const Process &than) const noexcept {
    Bytes out = 0;
    for (const Process &one : processes_)
        if (&one != &than) out = policy::added(out, policy::added(one.held(), one.kept()));
    return out;
}

bool Job::others_release(const Process &than) {
    bool any = false;
    for (Process &one : processes_)
        if (&one != &than) any |= one.release();
    return any;
}

void Job::retry() {
    for (Process &one : processes_) one.retry();
}

void Job::advance(std::uint64_t until) {
    for (;;) {
        std::uint64_t next = kNever;
        for (const Process &one : processes_) next = std::min(next, one.due_ns());
        next = std::max(next, now_);
        if (next > until || next == kNever) return;
        now_ = next;
        retry();
    }
}

ReplayedJob Job::run(bool to_first_refusal) {
    for (;;) {
        const auto next =
            std::min_element(processes_.begin(), processes_.end(),
                             [](const Process &a, const Process &b) { return a.next_ns() < b.next_ns(); });
        if (next == processes_.end() || next->next_ns() == kNever) break;
        if (next->next_ns() > now_) {
            advance(next->next_ns());
            now_ = next->next_ns();
        }
        next->take_next();
        if (to_first_refusal && next->so_far().refused + next->so_far().over_cap != 0) break;
    }
    advance(kNever);
    ReplayedJob out;
    for (Process &one : processes_) out.ranks.push_back(std::move(one).done());
    out.peak = peak_;
    out.peak_unix_ns = began_unix_ns_ + static_cast<std::int64_t>(peak_ns_);
    return out;
}

// Returns the smallest cap in whole MiB for which `serves` is true, from that many on. nullopt: none up to 8 EiB.
template <class Serves>
std::optional<Bytes> smallest(Bytes peak, Serves serves) {
    // Begin at the peak: usually a little more is enough, for requests that were refused then and for the driver.
    constexpr Bytes kMost = Bytes{1} << 43;
    Bytes most = peak / policy::MiB + 1;
    while (!serves(most * policy::MiB)) {
        most += std::max<Bytes>(most / 8, 64);
        if (most > kMost) return std::nullopt;
    }
    Bytes least = 0;  // too small
    while (most - least > 1) {
        const Bytes middle = least + (most - least) / 2;
        (serves(middle * policy::MiB) ? most : least) = middle;
    }
    return most * policy::MiB;
}

}  // namespace

bool ReplayedJob::is_served() const noexcept {
    return std::all_of(ranks.begin(), ranks.end(),
                       [](const Replayed &one) { return one.refused == 0 && one.over_cap == 0; });
}

ReplayedJob replay(std::span<const Rank> ranks, bool to_first_refusal) { return Job(ranks).run(to_first_refusal); }

Replayed replay(const Recording &recording, int gpu, const ReplayTerms &terms) {
    const Rank rank{&recording, gpu, terms};
    return std::move(replay({&rank, 1}).ranks.front());
}

std::optional<Bytes> smallest_cap(const Recording &recording, int gpu, Bytes total) {
    Rank rank{&recording, gpu, {}};
    rank.terms.total = total;
    return smallest(replay({&rank, 1}).peak, [&](Bytes cap) {
        rank.terms.gpu.cap = cap;
        return replay({&rank, 1}, true).is_served();
    });
}

std::optional<Bytes> smallest_job_cap(std::vector<Rank> ranks) {
    for (Rank &rank : ranks) rank.terms = {.gpu = {}, .total = rank.terms.total};
    return smallest(replay(ranks).peak, [&](Bytes cap) {
        for (Rank &rank : ranks) rank.terms.gpu.job_cap = cap;
        return replay(ranks, true).is_served();
    });
}

}  // namespace curb::cli
