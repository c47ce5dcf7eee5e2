#include "ledger.hpp"

#include "wait_queue.hpp"

namespace curb::shim {

policy::Verdict Ledger::reserve(Kind kind, Bytes bytes, const policy::Terms &terms, Bytes *seen) noexcept {
    // Begin before the addition: a reconcile must not mistake reserved bytes for allocated ones.
    begin();
    // acquire: a thread that sees held_ lowered by a free in a stream also sees those bytes in `returned_at_sync`.
    Bytes held = held_.load(std::memory_order_acquire);
    for (;;) {
        const Bytes taken = this->taken(held);
        const policy::Verdict verdict = policy::decide(terms, taken, bytes);
        if (verdict != policy::Verdict::grant) {
            end();
            if (seen) *seen = taken;
            return verdict;
        }
        if (held_.compare_exchange_weak(held, held + bytes, std::memory_order_acq_rel, std::memory_order_acquire))
            break;
    }
    kinds_[static_cast<std::size_t>(kind)].fetch_add(bytes, std::memory_order_acq_rel);
    return policy::Verdict::grant;
}

void Ledger::charge(Kind kind, Bytes bytes) noexcept {
    held_.fetch_add(bytes, std::memory_order_acq_rel);
    kinds_[static_cast<std::size_t>(kind)].fetch_add(bytes, std::memory_order_acq_rel);
}

void Ledger::credit(Kind kind, Bytes bytes) noexcept {
    kinds_[static_cast<std::size_t>(kind)].fetch_sub(bytes, std::memory_order_acq_rel);
    held_.fetch_sub(bytes, std::memory_order_acq_rel);
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
