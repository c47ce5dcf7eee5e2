#include "device/ledger.hpp"

#include <algorithm>
#include <utility>

#include "device/activity.hpp"
#include "device/wake_waiting.hpp"

namespace curb::shim {

namespace {

using policy::Verdict;

constexpr bool is_seen_by_nvml(Kind kind) noexcept { return kind != Kind::managed; }  // measured on an H100

}  // namespace

Verdict Ledger::reserve(Kind kind, Bytes bytes, policy::Terms &terms, Bytes *seen) noexcept {
    activity::note();
    Bytes all = 0;
    {
        const std::scoped_lock lock(lock_);
        all = counted(ahead_);
        if (seen) *seen = all;
        const Verdict verdict = policy::decide(terms, all, bytes);
        if (verdict != Verdict::grant) return verdict;
        ++begun_;
        add_to_kind(kind, bytes);
        if (terms.job_cap == 0 || !share.joined()) [[likely]] {
            change_held(bytes);
            return verdict;
        }
        set_held(held() + bytes);  // Share::reserve() shows them to the job
    }
    return reserve_in_job(kind, bytes, terms, all);
}

Verdict Ledger::reserve_in_job(Kind kind, Bytes bytes, policy::Terms &terms, Bytes counted) noexcept {
    using job::Share;
    share.keep(terms.kept_for_driver);
    Verdict verdict = Verdict::grant;
    // Two processes may refuse each other's requests in turn, so the tries are bounded.
    constexpr int kTries = 64;
    for (int tries = 0; verdict == Verdict::grant; ++tries) {
        const Share::Answer answer = share.reserve(bytes, terms.job_cap);
        if (answer == Share::Answer::reserved) return Verdict::grant;
        if (answer == Share::Answer::over || tries == kTries) {
            policy::lay_job_over(terms, terms.job_cap, tries == kTries ? policy::kUnbounded : share.others());
            verdict = policy::decide(terms, counted, bytes);
        }
        if (verdict == Verdict::grant) share.let_others_pass(tries);
    }
    if (counted == 0) share.keep(0);
    const std::scoped_lock lock(lock_);
    take_from_kind(kind, bytes);
    set_held(held() - bytes);
    ++done_;
    return verdict;
}

void Ledger::charge(Kind kind, Bytes bytes) noexcept {
    const std::scoped_lock lock(lock_);
    add_to_kind(kind, bytes);
    change_held(bytes);
}

void Ledger::credit(Kind kind, Bytes bytes) noexcept {
    {
        const std::scoped_lock lock(lock_);
        take_from_kind(kind, bytes);
        change_held(-bytes);
    }
    wait_queue::changed();
}

Ledger::Ahead Ledger::ahead() const noexcept {
    const std::scoped_lock lock(lock_);
    const std::uint64_t offered = offered_;
    return {offered, ahead_ - offered, offers_ - offered, take_backs_};
}

bool Ledger::reserve_ahead(const policy::Terms &terms, std::uint64_t take_backs) noexcept {
    const std::scoped_lock lock(lock_);
    if (exact_ != 0 || offered_ != 0 || take_backs_ != take_backs) return false;
    if (!policy::fits(terms, policy::limit(terms), counted(ahead_ + Ahead::kUnits), policy::Staleness::kNear))
        return false;
    ahead_ += Ahead::kUnits;
    offers_ += Ahead::kUnits;
    offered_ = Ahead::kUnits;
    return true;
}

bool Ledger::take_ahead() noexcept {
    std::uint64_t offered = offered_;
    while (offered != 0)
        if (offered_.compare_exchange_weak(offered, offered - 1)) return true;
    return false;
}

void Ledger::give_back_ahead(std::uint64_t units) noexcept {
    if (units == 0) return;
    {
        const std::scoped_lock lock(lock_);
        ahead_ -= units;
    }
    wait_queue::changed();
}

void Ledger::take_back_ahead() noexcept {
    std::uint64_t units = 0;
    {
        const std::scoped_lock lock(lock_);
        units = offered_.exchange(0);
        ahead_ -= units;
        offers_ -= units;
        ++take_backs_;
    }
    if (units != 0) wait_queue::changed();
}

void Ledger::NothingAhead::begin(Ledger &ledger) noexcept {
    if (ledger_) return;
    ledger_ = &ledger;
    {
        const std::scoped_lock lock(ledger.lock_);
        ++ledger.exact_;
    }
    ledger.take_back_ahead();
}

Ledger::NothingAhead::~NothingAhead() {
    if (!ledger_) return;
    const std::scoped_lock lock(ledger_->lock_);
    --ledger_->exact_;
}

Bytes Ledger::of(Kind kind) const noexcept {
    if (kind == Kind::overhead) return overhead();
    const std::scoped_lock lock(lock_);
    const auto held = static_cast<std::int64_t>(kinds_[static_cast<std::size_t>(kind)]);
    return held < 0 ? 0 : static_cast<Bytes>(held);
}

Bytes Ledger::credited() const noexcept {
    const std::scoped_lock lock(lock_);
    return credited_;
}

Bytes Ledger::held_until_sync() const noexcept {
    if (!has_returned_at_sync_) return held();
    const std::scoped_lock lock(lock_);
    return held_until_sync_locked();
}

void Ledger::add_returned_at_sync(Bytes bytes) noexcept {
    has_returned_at_sync_ = true;
    const std::scoped_lock lock(lock_);
    returned_at_sync_ += bytes;
    share.add(bytes);
}

Bytes Ledger::sync_mark() const noexcept {
    const std::scoped_lock lock(lock_);
    return returned_at_sync_;
}

void Ledger::synchronised(Bytes mark) noexcept {
    const std::scoped_lock lock(lock_);
    if (mark <= synchronised_) return;
    share.add(synchronised_ - mark);
    synchronised_ = mark;
}

bool Ledger::open_share(std::string_view uuid) noexcept {
    const std::scoped_lock lock(lock_);
    return share.joined() || share.open(uuid, held_until_sync_locked());
}

void Ledger::begin() noexcept {
    activity::note();
    const std::scoped_lock lock(lock_);
    ++begun_;
}

void Ledger::end() noexcept {
    const std::scoped_lock lock(lock_);
    ++done_;
}

Ledger::Before Ledger::now() const noexcept {
    const std::scoped_lock lock(lock_);
    return {begun_, begun_ == done_, credited_};
}

Ledger::Settled Ledger::settle(const Before &before, const Measured &figure) noexcept {
    Settled out{};
    {
        const std::scoped_lock lock(lock_);
        // If so, only the measurement has changed the charges (it reconciles the pools), so the newer ones fit the
        // figure.
        out.at_rest = before.quiet && figure.ahead_at_rest && begun_ == before.begun;
        const Bytes charged = charged_ - (out.at_rest ? credited_ : before.credited);
        const Bytes to = figure.bytes > charged ? figure.bytes - charged : 0;
        if (out.at_rest || to > overhead()) out.change = change_overhead(to);
    }
    if (out.change < 0) wait_queue::changed();
    return out;
}

std::int64_t Ledger::set_overhead(Bytes bytes) noexcept {
    std::int64_t change = 0;
    {
        const std::scoped_lock lock(lock_);
        change = change_overhead(bytes);
    }
    if (change < 0) wait_queue::changed();
    return change;
}

Bytes Ledger::take_from_overhead(Kind kind, Bytes bytes) noexcept {
    const std::scoped_lock lock(lock_);
    const Bytes moved = std::min(overhead(), bytes);
    overhead_.store(overhead() - moved, std::memory_order_relaxed);
    add_to_kind(kind, moved);
    ++begun_, ++done_;  // an operation: else a reconcile under way could count the bytes as overhead again
    return moved;
}

void Ledger::leave_to_overhead(Kind kind, Bytes bytes) noexcept {
    const std::scoped_lock lock(lock_);
    take_from_kind(kind, bytes);
    overhead_.store(overhead() + bytes, std::memory_order_relaxed);
}

void Ledger::change_held(Bytes by) noexcept {
    set_held(held() + by);
    share.add(by);
}

void Ledger::add_to_kind(Kind kind, Bytes bytes) noexcept {
    kinds_[static_cast<std::size_t>(kind)] += bytes;
    if (is_seen_by_nvml(kind)) charged_ += bytes;
}

void Ledger::take_from_kind(Kind kind, Bytes bytes) noexcept {
    kinds_[static_cast<std::size_t>(kind)] -= bytes;
    if (is_seen_by_nvml(kind)) credited_ += bytes;
}

std::int64_t Ledger::change_overhead(Bytes to) noexcept {
    const Bytes change = to - overhead();
    overhead_.store(to, std::memory_order_relaxed);
    change_held(change);
    return static_cast<std::int64_t>(change);
}

Bytes Ledger::held_until_sync_locked() const noexcept {
    return policy::added(held(), returned_at_sync_ - synchronised_);
}

}  // namespace curb::shim
