// The ledger of one device: the bytes that this process holds.
//
// held() = the charges of every kind + overhead. The overhead is NVML's figure for the process minus the charges that
// NVML sees: code, heaps, workspaces of the driver. Requests reserve and credit; reconcile() sets the overhead. Thread-
// safe, and lock-free except for the overhead.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>

#include "job_ledger.hpp"
#include "lifetime.hpp"
#include "policy/decisions/decide.hpp"
#include "policy/kinds.hpp"
#include "policy/values/granule.hpp"
#include "policy/values/size.hpp"

namespace curb::shim {

using policy::Bytes;
using policy::Kind;

namespace activity {

// Set when the program allocates, frees or launches; `release.idle` polls and clears it.
inline constinit std::atomic<bool> used{false};

// Usually costs one load.
inline void note() noexcept {
    if (!used.load(std::memory_order_relaxed)) used.store(true, std::memory_order_relaxed);
}

}  // namespace activity

// Bytes that the program freed in streams and the ledger has credited, on a device where NVML cannot show when the
// driver returns them. It returns them at a synchronisation, so until curb has synchronised no request may use them.
class ReturnedAtSync {
  public:
    // True if add() was ever called, for any device.
    static bool ever() noexcept { return ever_.load(std::memory_order_acquire); }

    // Call it after the free and before the credit. `share`: the ledger's, here and below.
    void add(Bytes bytes, job::Share &share) noexcept {
        ever_.store(true, std::memory_order_release);
        added_.fetch_add(bytes, std::memory_order_acq_rel);
        share.add(bytes);
    }
    [[nodiscard]] Bytes now() const noexcept {
        // In this order, an addition in between makes the result too high but never wraps it.
        const Bytes synchronised = synchronised_.load(std::memory_order_acquire);
        return added_.load(std::memory_order_acquire) - synchronised;
    }
    // Returns a mark for all bytes added so far. Pass it to synchronised() after a synchronisation that began later.
    [[nodiscard]] Bytes mark() const noexcept { return added_.load(std::memory_order_acquire); }
    void synchronised(Bytes mark, job::Share &share) noexcept {
        Bytes before = synchronised_.load(std::memory_order_acquire);
        while (before < mark && !synchronised_.compare_exchange_weak(before, mark, std::memory_order_acq_rel)) {
        }
        if (before < mark) share.add(before - mark);
    }

  private:
    static inline constinit std::atomic<bool> ever_{false};
    std::atomic<Bytes> added_{0}, synchronised_{0};
};

class Ledger {
  public:
    // Adds `bytes` if the policy grants them. Check and addition are one atomic step, so two threads cannot both get
    // the last free bytes. On `grant` the caller must end() the operation that has begun. Otherwise the ledger is
    // unchanged and `*seen` gets the bytes that were taken; if the job's cap refused, `terms` show what its other
    // processes hold now.
    policy::Verdict reserve(Kind kind, Bytes bytes, policy::Terms &terms, Bytes *seen = nullptr) noexcept;
    // Adds bytes that the driver has taken already (a pool that grew more than expected).
    void charge(Kind kind, Bytes bytes) noexcept;
    void credit(Kind kind, Bytes bytes) noexcept;

    // Bytes reserved ahead of requests to pools, far from the limits: as many units as requests may each make a pool
    // grow by. A unit is offered, then a request's, then its pool's until the pool's size has been read (pools.hpp).
    // Decisions count all of them as taken; held() and the kinds show none.
    static constexpr Bytes kAheadUnit = policy::kPoolUnit;
    static constexpr std::uint32_t kAheadUnits = 16;
    // Offers units if there are none. False if requests would then be near the limit, if one demands exact figures, or
    // if units were taken back since `take_backs` was read. Read that before the terms.
    bool reserve_ahead(const policy::Terms &terms, std::uint64_t take_backs) noexcept;
    // Takes an offered unit. False if there is none.
    bool take_ahead() noexcept {
        std::uint64_t before = ahead_.load(std::memory_order_relaxed);
        while (offered(before) != 0)
            if (ahead_.compare_exchange_weak(before, before - 1, std::memory_order_seq_cst, std::memory_order_relaxed))
                return true;
        return false;
    }
    [[nodiscard]] bool offers_ahead() const noexcept { return offered(ahead_.load(std::memory_order_relaxed)) != 0; }
    // Returns units that were taken.
    void return_ahead(std::uint64_t units) noexcept;
    // Takes back the units that are offered, and those that another thread is about to offer. Call it after limits were
    // lowered.
    void take_back_ahead() noexcept;
    // Returns the number of calls of take_back_ahead, modulo 2^24.
    [[nodiscard]] std::uint64_t take_backs() const noexcept {
        return ahead_.load(std::memory_order_seq_cst) / kOneTakeBack;
    }
    [[nodiscard]] Bytes ahead() const noexcept { return reserved(ahead_.load(std::memory_order_seq_cst)); }
    // Returns those of them that requests have taken: the most that pools may have grown by since they were read.
    [[nodiscard]] Bytes unread() const noexcept {
        const std::uint64_t now = ahead_.load(std::memory_order_seq_cst);
        return reserved(now) - (offered(now) + announced(now)) * kAheadUnit;
    }
    // While it exists, nothing is offered ahead.
    class NothingAhead : NoCopy {
      public:
        explicit NothingAhead(Ledger &ledger) noexcept : ledger_(ledger) {
            ledger_.closed_.fetch_add(1, std::memory_order_seq_cst);
            ledger_.take_back_ahead();
        }
        ~NothingAhead() { ledger_.closed_.fetch_sub(1, std::memory_order_seq_cst); }

      private:
        Ledger &ledger_;
    };

    [[nodiscard]] Bytes held() const noexcept { return held_.load(std::memory_order_relaxed); }
    // Returns held() plus the bytes that the driver returns only at a synchronisation: requests cannot use these yet.
    [[nodiscard]] Bytes taken() const noexcept { return taken(held_.load(std::memory_order_acquire)); }
    // This ledger as the other processes of the job see it. Every change of the bytes held changes it too.
    job::Share share;
    ReturnedAtSync returned_at_sync;
    // Opens the share in the job that the process has joined. Requests may run meanwhile. False as Share::open().
    bool open_share(std::string_view uuid) noexcept;
    [[nodiscard]] Bytes of(Kind kind) const noexcept {
        return kinds_[static_cast<std::size_t>(kind)].load(std::memory_order_relaxed);
    }
    [[nodiscard]] Bytes overhead() const noexcept { return of(Kind::overhead); }

    // Every change of memory is an operation: it begins before the driver call and ends when the ledger shows what the
    // driver did. In between, ledger and device may differ.
    void begin() noexcept {
        activity::note();
        begun_.fetch_add(1, std::memory_order_seq_cst);
    }
    void end() noexcept { done_.fetch_add(1, std::memory_order_seq_cst); }

    // An operation as long as the scope. Does nothing if `ledger` is null.
    class Operation : NoCopy {
      public:
        explicit Operation(Ledger *ledger) noexcept : ledger_(ledger) {
            if (ledger_) ledger_->begin();
        }
        ~Operation() {
            if (ledger_) ledger_->end();
        }

      private:
        Ledger *ledger_;
    };

    static constexpr int kAttempts = 3;
    // Sets the overhead from `measure()`, which returns NVML's figure for this process (nullopt if it has none). Calls
    // `changed(bytes)` with the change. False if nothing could be measured.
    //
    // During other operations the overhead is only raised: memory is reserved before the driver allocates it and
    // credited after the driver freed it, so figure - charges is then usually too low. It is too high if others
    // allocate and free while NVML answers, until the ledger is next measured at rest. Do not call it within your own
    // operation: it would never see the ledger at rest.
    template <class Measure, class Changed>
    bool reconcile(Measure measure, Changed changed, int attempts = kAttempts) noexcept {
        for (int attempt = 0; attempt < attempts; ++attempt) {
            const std::uint64_t begun = begun_.load(std::memory_order_seq_cst);
            const bool quiet_before = begun == done_.load(std::memory_order_seq_cst);
            if (attempt > 0 && !quiet_before) return true;  // another figure would be no better than the first
            const Bytes charged_before = visible();
            const std::optional<Bytes> figure = measure();
            if (!figure) return false;
            const Bytes charged_after = visible();
            const bool quiet = quiet_before && begun == begun_.load(std::memory_order_seq_cst);
            // If quiet, only `measure` has changed the charges (it reconciles the pools), so the newer ones fit the
            // figure.
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
    // Returns the change.
    std::int64_t set_overhead(Bytes bytes) noexcept;
    // Moves up to `bytes` of the overhead to `kind`; held() stays the same. Returns the bytes moved.
    Bytes take_from_overhead(Kind kind, Bytes bytes) noexcept;
    // Moves bytes from `kind` to the overhead, for memory that the program has freed but the driver may still hold. A
    // later reconcile credits what the driver has returned. Call it within an operation.
    void leave_to_overhead(Kind kind, Bytes bytes) noexcept;

  private:
    // Asks the job for `bytes` that this ledger has added already. Takes them back on another verdict than `grant`.
    policy::Verdict reserve_in_job(Kind kind, Bytes bytes, policy::Terms &terms, Bytes taken) noexcept;
    [[nodiscard]] Bytes taken(Bytes held) const noexcept { return policy::added(held, returned_at_sync.now()); }

    // ahead_, from its low bits: the units that are offered, whether a thread is about to offer kAheadUnits, all units,
    // and the number of take-backs.
    static constexpr std::uint64_t kAnnounced = std::uint64_t{1} << 15, kOneReserved = kAnnounced << 1,
                                   kOneTakeBack = std::uint64_t{1} << 40;
    static constexpr std::uint64_t offered(std::uint64_t ahead) noexcept { return ahead % kAnnounced; }
    static constexpr std::uint64_t announced(std::uint64_t ahead) noexcept {
        return (ahead & kAnnounced) != 0 ? kAheadUnits : 0;
    }
    static constexpr Bytes reserved(std::uint64_t ahead) noexcept {
        return ahead % kOneTakeBack / kOneReserved * kAheadUnit;
    }

    // Returns the increase.
    Bytes raise_overhead(Bytes to) noexcept;
    // As set_overhead. Returns nullopt and changes nothing if an operation has begun since `begun` was read: `bytes`
    // lacks what that operation leaves to the overhead.
    std::optional<std::int64_t> set_overhead_if(std::uint64_t begun, Bytes bytes) noexcept;
    // The caller holds the lock.
    std::int64_t change_overhead(Bytes to) noexcept;

    // Returns the charges that NVML's figure includes: all except managed memory (measured on an H100).
    [[nodiscard]] Bytes visible() const noexcept {
        Bytes sum = 0;
        for (std::size_t kind = 0; kind < policy::kKinds; ++kind)
            if (static_cast<Kind>(kind) != Kind::managed && static_cast<Kind>(kind) != Kind::overhead)
                sum += of(static_cast<Kind>(kind));
        return sum;
    }

    // Every request writes these. They share one cache line, apart from fields that requests only read.
    alignas(64) std::atomic<Bytes> held_{0};
    std::atomic<std::uint64_t> begun_{0};
    std::atomic<std::uint64_t> done_{0};
    std::atomic<Bytes> kinds_[policy::kKinds]{};
    // Every request reads these.
    alignas(64) std::atomic<std::uint64_t> ahead_{0};
    std::atomic<int> closed_{0};  // number of NothingAhead
    // Held for a moment to change the overhead; requests never take it.
    std::mutex overhead_mutex_;
};

}  // namespace curb::shim
