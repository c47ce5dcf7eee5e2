#include "device/ledger.hpp"

#include <sched.h>

#include <algorithm>

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
    // acquire: a thread that sees held_ lowered by a free in a stream also sees those bytes in `returned_at_sync`.
    Bytes held = held_.load(std::memory_order_acquire), taken = 0;
    for (;;) {
        const Bytes ahead = ahead_.bytes();
        taken = this->taken(held + ahead);
        const policy::Verdict verdict = policy::decide(terms, taken, bytes);
        if (verdict != policy::Verdict::grant) {
            end();
            if (seen) *seen = taken;
            return verdict;
        }
        if (!held_.compare_exchange_weak(held, held + bytes, std::memory_order_seq_cst, std::memory_order_acquire))
            continue;
        // A reservation ahead adds its bytes, then reads held_; here it is the other way round. So of two at once the
        // later one sees the other.
        const Bytes now = ahead_.bytes();
        if (now <= ahead) [[likely]]
            break;
        if (grants(terms, this->taken(held + now), bytes)) break;
        held = held_.fetch_sub(bytes, std::memory_order_acq_rel) - bytes;
    }
    charged_.add(kind, bytes);
    if (!share.joined()) [[likely]]
        return policy::Verdict::grant;
    const policy::Verdict verdict = reserve_in_job(kind, bytes, terms, taken);
    if (verdict == policy::Verdict::grant) return verdict;
    end();
    if (seen) *seen = taken;
    return verdict;
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
    credited_.add(kind, bytes);
    held_.fetch_sub(bytes, std::memory_order_acq_rel);
    if (taken == 0) share.keep(0);
    return verdict;
}

bool Ledger::open_share(std::string_view uuid) noexcept {
    if (share.joined()) return true;
    const std::scoped_lock lock(overhead_mutex_);
    const Bytes before = taken();
    if (!share.open(uuid, before)) return false;
    // Operations that were under way may have changed one of the two figures and not the other. Compare them while none
    // is under way; until then the job sees a little more or less.
    poll_until(
        [this] {
            const std::uint64_t begun = begun_.load();
            if (begun != done_.load()) return false;
            const Bytes held = taken(), shown = share.held();
            if (begun != begun_.load()) return false;
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
    charged_.add(kind, bytes);
    share.add(bytes);
}

void Ledger::credit(Kind kind, Bytes bytes) noexcept {
    credited_.add(kind, bytes);
    held_.fetch_sub(bytes, std::memory_order_acq_rel);
    share.add(-bytes);
    wait_queue::changed();
}

std::int64_t Ledger::set_overhead(Bytes bytes) noexcept {
    const std::scoped_lock lock(overhead_mutex_);
    return change_overhead(bytes);
}

std::optional<std::int64_t> Ledger::set_overhead_if(std::uint64_t begun, Bytes bytes) noexcept {
    const std::scoped_lock lock(overhead_mutex_);
    if (begun_.load(std::memory_order_seq_cst) != begun) return std::nullopt;
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
    credited_.add(kind, bytes);
}

Bytes Ledger::take_from_overhead(Kind kind, Bytes bytes) noexcept {
    const Operation operation(this);  // otherwise a reconcile could count the bytes as overhead again
    const std::scoped_lock lock(overhead_mutex_);
    const Bytes taken = std::min(overhead(), bytes);
    overhead_.fetch_sub(taken, std::memory_order_acq_rel);
    charged_.add(kind, taken);
    return taken;
}

}  // namespace curb::shim
