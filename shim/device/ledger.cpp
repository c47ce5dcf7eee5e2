#include "ledger.hpp"

#include <sched.h>

#include "waiting.hpp"
#include "wake_waiting.hpp"

namespace curb::shim {

namespace {

// Out of line: reserve() is on the way of every request, and this is not.
[[gnu::noinline, gnu::cold]] bool grants(const policy::Terms &terms, Bytes taken, Bytes bytes) noexcept {
    return policy::decide(terms, taken, bytes) == policy::Verdict::grant;
}

}  // namespace

policy::Verdict Ledger::reserve(Kind kind, Bytes bytes, policy::Terms &terms, Bytes *seen) noexcept {
    // Begin before the addition: a reconcile must not mistake reserved bytes for allocated ones.
    begin();
    // acquire: a thread that sees held_ lowered by a free in a stream also sees those bytes in `returned_at_sync`.
    Bytes held = held_.load(std::memory_order_acquire), taken = 0;
    for (;;) {
        const std::uint64_t ahead = ahead_.load(std::memory_order_seq_cst);
        taken = this->taken(held + reserved(ahead));
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
        const std::uint64_t now = ahead_.load(std::memory_order_seq_cst);
        if (reserved(now) <= reserved(ahead)) [[likely]]
            break;
        if (grants(terms, this->taken(held + reserved(now)), bytes)) break;
        held = held_.fetch_sub(bytes, std::memory_order_acq_rel) - bytes;
    }
    kinds_[static_cast<std::size_t>(kind)].fetch_add(bytes, std::memory_order_acq_rel);
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
    kinds_[static_cast<std::size_t>(kind)].fetch_sub(bytes, std::memory_order_acq_rel);
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
            const std::uint64_t begun = begun_.load(std::memory_order_seq_cst);
            if (begun != done_.load(std::memory_order_seq_cst)) return false;
            const Bytes held = taken(), shown = share.held();
            if (begun != begun_.load(std::memory_order_seq_cst)) return false;
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
    const auto taken_back = [&](std::uint64_t ahead) { return ahead / kOneTakeBack != take_backs; };
    std::uint64_t now = ahead_.load(std::memory_order_seq_cst);
    const Bytes all = reserved(now) + kAheadUnits * kAheadUnit;
    // Checked before too: even for a moment the bytes would be in the way of a request that needs them.
    if (taken_back(now) || offered(now) + announced(now) != 0 || !allowed(all)) return false;
    if (!ahead_.compare_exchange_strong(now, now + kAheadUnits * kOneReserved + kAnnounced, std::memory_order_seq_cst))
        return false;
    // A request of another thread may have been granted in between, so no unit may be taken before the second check.
    if (!allowed(all)) {
        take_back_ahead();
        return false;
    }
    now = ahead_.load(std::memory_order_seq_cst);
    while (!taken_back(now) &&
           !ahead_.compare_exchange_weak(now, now - kAnnounced + kAheadUnits, std::memory_order_seq_cst)) {
    }
    return !taken_back(now);
}

void Ledger::return_ahead(std::uint64_t units) noexcept {
    if (units == 0) return;
    ahead_.fetch_sub(units * kOneReserved, std::memory_order_seq_cst);
    wait_queue::changed();
}

void Ledger::take_back_ahead() noexcept {
    std::uint64_t before = ahead_.load(std::memory_order_seq_cst), units = 0;
    do {
        units = offered(before) + announced(before);
    } while (!ahead_.compare_exchange_weak(
        before, before / kOneReserved * kOneReserved - units * kOneReserved + kOneTakeBack, std::memory_order_seq_cst));
    if (units != 0) wait_queue::changed();
}

void Ledger::charge(Kind kind, Bytes bytes) noexcept {
    held_.fetch_add(bytes, std::memory_order_acq_rel);
    kinds_[static_cast<std::size_t>(kind)].fetch_add(bytes, std::memory_order_acq_rel);
    share.add(bytes);
}

void Ledger::credit(Kind kind, Bytes bytes) noexcept {
    kinds_[static_cast<std::size_t>(kind)].fetch_sub(bytes, std::memory_order_acq_rel);
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
    const Bytes before = kinds_[static_cast<std::size_t>(Kind::overhead)].exchange(to, std::memory_order_acq_rel);
    held_.fetch_add(to - before, std::memory_order_acq_rel);  // modulo 2^64, so a decrease wraps correctly
    share.add(to - before);
    if (to < before) wait_queue::changed();
    return static_cast<std::int64_t>(to - before);
}

void Ledger::leave_to_overhead(Kind kind, Bytes bytes) noexcept {
    const std::scoped_lock lock(overhead_mutex_);
    kinds_[static_cast<std::size_t>(Kind::overhead)].fetch_add(bytes, std::memory_order_acq_rel);
    kinds_[static_cast<std::size_t>(kind)].fetch_sub(bytes, std::memory_order_acq_rel);
}

Bytes Ledger::take_from_overhead(Kind kind, Bytes bytes) noexcept {
    const Operation operation(this);  // otherwise a reconcile could count the bytes as overhead again
    const std::scoped_lock lock(overhead_mutex_);
    const Bytes taken = std::min(overhead(), bytes);
    kinds_[static_cast<std::size_t>(Kind::overhead)].fetch_sub(taken, std::memory_order_acq_rel);
    kinds_[static_cast<std::size_t>(kind)].fetch_add(taken, std::memory_order_acq_rel);
    return taken;
}

}  // namespace curb::shim
