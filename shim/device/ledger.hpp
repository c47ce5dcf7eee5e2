// What this process holds of one device, in bytes. Reached only by reserve and give-back (and by reconcile, which sets
// the part that cannot be charged call by call), so that a ledger shared by several processes can take its place.
//
// Thread-safe, and lock-free but for the overhead. held() is: charges of every kind + overhead, where overhead is what
// the device's own figure for the process has beyond the charges it can see: code, heaps, workspaces of the driver.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>

#include "activity.hpp"
#include "policy/decide.hpp"
#include "policy/kinds.hpp"
#include "policy/size.hpp"
#include "returned_at_sync.hpp"

namespace curb::shim {

using policy::Bytes;

using policy::Kind;

class Ledger {
  public:
    // Adds `bytes` if the policy grants it in one step with the addition, so that two threads cannot both take the last
    // room. `grant` has begun an operation, which the caller ends; anything else leaves the books as they were, and
    // `seen` tells how much was held at that moment.
    policy::Verdict reserve(Kind kind, Bytes bytes, const policy::Terms &terms, Bytes *seen = nullptr) noexcept;
    // Adds what the driver has taken already (a pool that grew more than was foreseen).
    void charge(Kind kind, Bytes bytes) noexcept;
    void credit(Kind kind, Bytes bytes) noexcept;

    [[nodiscard]] Bytes held() const noexcept { return held_.load(std::memory_order_relaxed); }
    // What requests have no room for: the same, and what the driver may still hold until it is synchronised.
    [[nodiscard]] Bytes taken() const noexcept { return taken(held_.load(std::memory_order_acquire)); }
    ReturnedAtSync returned_at_sync;
    [[nodiscard]] Bytes of(Kind kind) const noexcept {
        return kinds_[static_cast<std::size_t>(kind)].load(std::memory_order_relaxed);
    }
    [[nodiscard]] Bytes overhead() const noexcept { return of(Kind::overhead); }

    // Every change of memory happens within an operation: begun before the driver is called, done when the books say
    // what the driver did. In between, books and device may differ.
    void begin() noexcept {
        activity::note();
        begun_.fetch_add(1, std::memory_order_seq_cst);
    }
    void end() noexcept { done_.fetch_add(1, std::memory_order_seq_cst); }

    // The operation of a scope; of none, without a ledger.
    class Operation {
      public:
        explicit Operation(Ledger *ledger) noexcept : ledger_(ledger) {
            if (ledger_) ledger_->begin();
        }
        ~Operation() {
            if (ledger_) ledger_->end();
        }
        Operation(const Operation &) = delete;
        Operation &operator=(const Operation &) = delete;

      private:
        Ledger *ledger_;
    };

    static constexpr int kAttempts = 3;
    // Sets the overhead from `measure`, which returns the device's figure for this process (none: not to be had) and is
    // called while no operation is under way. With operations under way the overhead is only ever raised: memory is
    // reserved before it is taken and given back after it is freed, so figure - charges can then only be too low. Not
    // to be called within an operation of one's own, which would never be quiet. `changed` is told by how much the
    // overhead has changed, if it has. False: nothing could be measured.
    template <class Measure, class Changed>
    bool reconcile(Measure measure, Changed changed, int attempts = kAttempts) noexcept {
        for (int attempt = 0; attempt < attempts; ++attempt) {
            const std::uint64_t begun = begun_.load(std::memory_order_seq_cst);
            const bool quiet_before = begun == done_.load(std::memory_order_seq_cst);
            if (attempt > 0 && !quiet_before) return true;  // another figure would tell no more than the first
            const Bytes charged_before = visible();
            const std::optional<Bytes> figure = measure();
            if (!figure) return false;
            const Bytes charged_after = visible();
            const bool quiet = quiet_before && begun == begun_.load(std::memory_order_seq_cst);
            // Quiet, only `measure` itself has changed the charges (it looks at the pools again), and the figure is to
            // be held against the newer ones.
            const Bytes charged = quiet ? charged_after : std::max(charged_before, charged_after);
            const Bytes overhead = *figure > charged ? *figure - charged : 0;
            if (const auto change = quiet ? set_overhead_if(begun, overhead) : std::nullopt) {
                changed(*change);
                return true;
            }
            if (const Bytes raised = raise_overhead(overhead)) changed(static_cast<std::int64_t>(raised));
        }
        return true;
    }
    // Returns by how much it has changed.
    std::int64_t set_overhead(Bytes bytes) noexcept;
    // What was measured as overhead is charged as `kind` from here on, as far as it is there: what is held stays the
    // same. Returns how much that is.
    Bytes take_from_overhead(Kind kind, Bytes bytes) noexcept;
    // The other way round, within an operation: what was charged as `kind` and is no longer known of by the books, but
    // may be held until the driver sees that it can go. A quiet look at the device credits what has gone.
    void leave_to_overhead(Kind kind, Bytes bytes) noexcept;

  private:
    [[nodiscard]] Bytes taken(Bytes held) const noexcept { return policy::added(held, returned_at_sync.now()); }

    // Returns by how much.
    Bytes raise_overhead(Bytes to) noexcept;
    // The same as set_overhead, if no operation has begun since: what one that has leaves to the overhead is not in
    // `bytes`. None: one has.
    std::optional<std::int64_t> set_overhead_if(std::uint64_t begun, Bytes bytes) noexcept;
    // Under the lock.
    std::int64_t change_overhead(Bytes to) noexcept;

    // What the device's figure for the process includes of the charges: all but managed memory (measured on an H100).
    [[nodiscard]] Bytes visible() const noexcept {
        Bytes sum = 0;
        for (std::size_t kind = 0; kind < policy::kKinds; ++kind)
            if (static_cast<Kind>(kind) != Kind::managed && static_cast<Kind>(kind) != Kind::overhead)
                sum += of(static_cast<Kind>(kind));
        return sum;
    }

    // What every request writes, together and apart from what it only reads: a core that has this line has all that the
    // request needs of it.
    alignas(64) std::atomic<Bytes> held_{0};
    std::atomic<std::uint64_t> begun_{0};
    std::atomic<std::uint64_t> done_{0};
    std::atomic<Bytes> kinds_[policy::kKinds]{};
    // Of whoever changes the overhead: a moment each, and never in a request.
    alignas(64) std::mutex overhead_mutex_;
};

}  // namespace curb::shim
