#include "device/ledger.hpp"

#include <sched.h>

#include <algorithm>
#include <utility>

#include "base/readers.hpp"
#include "base/waiting.hpp"
#include "device/wake_waiting.hpp"

namespace curb::shim {

namespace {

// Out of line: reserve() is on the way of every request, and this is not.
[[gnu::noinline, gnu::cold]] bool grants(const policy::Terms &terms, Bytes taken, Bytes bytes) noexcept {
    return policy::decide(terms, taken, bytes) == policy::Verdict::grant;
}

}  // namespace

policy::Verdict Ledger::reserve(Kind kind, Bytes bytes, policy::Terms &terms, Bytes *seen) noexcept {
    // Begin before the addition: a reconcile must not mistake reserved bytes for allocated ones. And open_share() must
    // not compare while this thread takes the process for one without a job.
    begin();
    if (is_split() && take_spare(terms, bytes)) [[unlikely]] {
        figures().charged.add(kind, bytes);
        return policy::Verdict::grant;
    }
    // acquire: a thread that sees held_ lowered by a free in a stream also sees those bytes in `returned_at_sync`.
    Bytes held = held_.load(std::memory_order_acquire), taken = 0;
    bool collected = false;
    for (;;) {
        const Bytes ahead = ahead_.bytes();
        taken = this->taken(held + ahead);
        const policy::Verdict verdict = policy::decide(terms, taken, bytes);
        if (verdict != policy::Verdict::grant) {
            if (!std::exchange(collected, true) && collect()) {
                held = held_.load(std::memory_order_acquire);
                continue;
            }
            end();
            if (seen) *seen = taken;
            return verdict;
        }
        if (!held_.compare_exchange_weak(held, held + bytes, std::memory_order_seq_cst, std::memory_order_acquire)) {
            split(terms);
            continue;
        }
        // A reservation ahead adds its bytes, then reads held_; here it is the other way round. So of two at once the
        // later one sees the other.
        const Bytes now = ahead_.bytes();
        if (now <= ahead) [[likely]]
            break;
        if (grants(terms, this->taken(held + now), bytes)) break;
        held = held_.fetch_sub(bytes, std::memory_order_acq_rel) - bytes;
    }
    together_.charged.add(kind, bytes);
    if (!share.joined()) [[likely]]
        return policy::Verdict::grant;
    const policy::Verdict verdict = reserve_in_job(kind, bytes, terms, taken);
    if (verdict == policy::Verdict::grant) return verdict;
    end();
    if (seen) *seen = taken;
    return verdict;
}

void Ledger::split(const policy::Terms &terms) noexcept {
    const Bytes most =
        policy::added(taken(held_.load(std::memory_order_seq_cst) + ahead_.bytes()), kParts * kMostSpare);
    if (is_split() || terms.limit_beside_others != policy::kUnbounded ||
        !policy::fits(terms, policy::limit(terms), most, policy::Staleness::kNear))
        return;
    split_.store(Split::now, std::memory_order_seq_cst);
    // Read after the store, so that of a split and of what ends it the later one sees the other.
    if (closed_.load(std::memory_order_seq_cst) != 0 || share.joined()) collect();
}

bool Ledger::collect() noexcept {
    if (!was_split()) return false;
    split_.store(Split::ended, std::memory_order_seq_cst);
    Bytes all = 0;
    for (Part &part : parts_)
        if (part.spare.load(std::memory_order_seq_cst) != 0) all += part.spare.exchange(0, std::memory_order_seq_cst);
    if (all != 0) held_.fetch_sub(all, std::memory_order_seq_cst);
    return all != 0;
}

Ledger::Part &Ledger::part() noexcept { return parts_[readers::mine().number % kParts]; }

bool Ledger::take_spare(const policy::Terms &terms, Bytes bytes) noexcept {
    if (share.joined()) return false;
    Part &part = this->part();
    Bytes spare = part.spare.load(std::memory_order_relaxed);
    do {
        if (spare < bytes) return false;
    } while (!part.spare.compare_exchange_weak(spare, spare - bytes, std::memory_order_acq_rel));
    // held_ has the bytes already, and nothing else has: whether they are granted or not, the sum stays right.
    const Bytes others = held_.load(std::memory_order_acquire) - bytes;
    if (grants(terms, taken(others + ahead_.bytes()), bytes)) return true;
    held_.fetch_sub(bytes, std::memory_order_acq_rel);
    return false;
}

void Ledger::credit_part(Kind kind, Bytes bytes) noexcept {
    Part &part = this->part();
    part.credited.add(kind, bytes);
    if (part.spare.load(std::memory_order_relaxed) + bytes <= kMostSpare)
        part.spare.fetch_add(bytes, std::memory_order_seq_cst);
    else
        held_.fetch_sub(bytes, std::memory_order_acq_rel);
}

Bytes Ledger::without_spare() const noexcept {
    // If held_ changes meanwhile, bytes may be counted in it and as spare, or in neither.
    constexpr int kTries = 4;
    for (int tries = 1;; ++tries) {
        const Bytes held = held_.load(std::memory_order_seq_cst);
        Bytes spare = 0;
        for (const Part &part : parts_) spare += part.spare.load(std::memory_order_seq_cst);
        if (held == held_.load(std::memory_order_seq_cst) || tries == kTries) return held - std::min(held, spare);
    }
}

Bytes Ledger::of_parts(Kind kind) const noexcept {
    return difference([&] { return sum_of(&Figures::charged, kind); },
                      [&] { return sum_of(&Figures::credited, kind); });
}

policy::Verdict Ledger::reserve_in_job(Kind kind, Bytes bytes, policy::Terms &terms, Bytes taken) noexcept {
    using job::Share;
    if (terms.job_cap == 0) {
        share.add(bytes);
        return policy::Verdict::grant;
    }
    share.keep(terms.kept_for_driver);
    policy::Verdict verdict = policy::Verdict::grant;
    // Two processes may refuse each other's requests in turn, so the tries are bounded.
    constexpr int kTries = 64;
    for (int tries = 0; verdict == policy::Verdict::grant; ++tries) {
        const Share::Answer answer = share.reserve(bytes, terms.job_cap);
        if (answer == Share::Answer::reserved) return policy::Verdict::grant;
        if (answer == Share::Answer::over || tries == kTries) {
            policy::lay_job_over(terms, terms.job_cap, tries == kTries ? policy::kUnbounded : share.others());
            verdict = policy::decide(terms, taken, bytes);
        }
        if (verdict == policy::Verdict::grant) share.let_others_pass(tries);
    }
    figures().credited.add(kind, bytes);
    held_.fetch_sub(bytes, std::memory_order_acq_rel);
    if (taken == 0) share.keep(0);
    return verdict;
}

bool Ledger::open_share(std::string_view uuid) noexcept {
    if (share.joined()) return true;
    const std::scoped_lock lock(overhead_mutex_);
    const Bytes before = taken();
    if (!share.open(uuid, before)) return false;
    collect();  // the sum of the job is exact
    // Operations that were under way may have changed one of the two figures and not the other. Compare them while none
    // is under way; until then the job sees a little more or less.
    poll_until(
        [this] {
            const std::uint64_t begun = this->begun();
            if (begun != done()) return false;
            const Bytes held = taken(), shown = share.held();
            if (begun != this->begun()) return false;
            share.add(held - shown);
            return true;
        },
        100);
    return true;
}

bool Ledger::reserve_ahead(const policy::Terms &terms, std::uint64_t take_backs) noexcept {
    const auto allowed = [&](Bytes ahead) {
        const Bytes all = policy::added(taken(held_.load(std::memory_order_seq_cst)), ahead);
        return closed_.load(std::memory_order_seq_cst) == 0 &&
               policy::fits(terms, policy::limit(terms), all, policy::Staleness::kNear);
    };
    if (!ahead_.announce(take_backs, allowed)) return false;
    // A request of another thread may have been granted in between, so no unit may be taken before this second check.
    if (!allowed(ahead_.bytes())) {
        ahead_.take_back();
        return false;
    }
    return ahead_.offer(take_backs);
}

void Ledger::charge(Kind kind, Bytes bytes) noexcept {
    held_.fetch_add(bytes, std::memory_order_acq_rel);
    figures().charged.add(kind, bytes);
    share.add(bytes);
}

void Ledger::credit(Kind kind, Bytes bytes) noexcept {
    if (is_split()) [[unlikely]] {
        credit_part(kind, bytes);
    } else {
        together_.credited.add(kind, bytes);
        held_.fetch_sub(bytes, std::memory_order_acq_rel);
    }
    share.add(-bytes);
    wait_queue::changed();
}

std::int64_t Ledger::set_overhead(Bytes bytes) noexcept {
    const std::scoped_lock lock(overhead_mutex_);
    return change_overhead(bytes);
}

std::optional<std::int64_t> Ledger::set_overhead_if(std::uint64_t begun, Bytes bytes) noexcept {
    const std::scoped_lock lock(overhead_mutex_);
    if (this->begun() != begun) return std::nullopt;
    return change_overhead(bytes);
}

Bytes Ledger::raise_overhead(Bytes to) noexcept {
    const std::scoped_lock lock(overhead_mutex_);
    return to > overhead() ? static_cast<Bytes>(change_overhead(to)) : 0;
}

std::int64_t Ledger::change_overhead(Bytes to) noexcept {
    const Bytes before = overhead_.exchange(to, std::memory_order_acq_rel);
    held_.fetch_add(to - before, std::memory_order_acq_rel);  // modulo 2^64, so a decrease wraps correctly
    share.add(to - before);
    if (to < before) wait_queue::changed();
    return static_cast<std::int64_t>(to - before);
}

void Ledger::leave_to_overhead(Kind kind, Bytes bytes) noexcept {
    const std::scoped_lock lock(overhead_mutex_);
    overhead_.fetch_add(bytes, std::memory_order_acq_rel);
    figures().credited.add(kind, bytes);
}

Bytes Ledger::take_from_overhead(Kind kind, Bytes bytes) noexcept {
    const Operation operation(this);  // otherwise a reconcile could count the bytes as overhead again
    const std::scoped_lock lock(overhead_mutex_);
    const Bytes taken = std::min(overhead(), bytes);
    overhead_.fetch_sub(taken, std::memory_order_acq_rel);
    figures().charged.add(kind, taken);
    return taken;
}

}  // namespace curb::shim
