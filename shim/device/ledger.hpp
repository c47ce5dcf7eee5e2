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

#include "base/lifetime.hpp"
#include "device/ahead_units.hpp"
#include "job/job_ledger.hpp"
#include "policy/decisions/decide.hpp"
#include "policy/kinds.hpp"
#include "policy/values/size.hpp"

namespace curb::shim {

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
// driver returns them. The driver returns them at a synchronisation. So no request may use them until curb has
// synchronised.
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

    // Units that are reserved ahead for requests to pools, far from the limits.
    [[nodiscard]] AheadUnits &ahead() noexcept { return ahead_; }
    [[nodiscard]] const AheadUnits &ahead() const noexcept { return ahead_; }
    // Offers units ahead if there are none. False if requests would then be near the limit, if one demands exact
    // figures, or if units were taken back since `take_backs` was read. Read that before the terms. Take them back
    // after limits were lowered.
    bool reserve_ahead(const policy::Terms &terms, std::uint64_t take_backs) noexcept;
    // From begin() to its end, nothing is offered ahead.
    class NothingAhead : NoCopy {
      public:
        ~NothingAhead() {
            if (ledger_) ledger_->closed_.fetch_sub(1, std::memory_order_seq_cst);
        }
        // Later calls do nothing.
        void begin(Ledger &ledger) noexcept {
            if (ledger_) return;
            ledger_ = &ledger;
            ledger.closed_.fetch_add(1, std::memory_order_seq_cst);
            ledger.ahead_.take_back();
        }

      private:
        Ledger *ledger_ = nullptr;
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
        if (kind == Kind::overhead) return overhead();
        return difference([&] { return charged_.of(kind); }, [&] { return credited_.of(kind); });
    }
    [[nodiscard]] Bytes overhead() const noexcept { return overhead_.load(std::memory_order_relaxed); }

    // Every change of memory is an operation: it begins before the driver call and ends when the ledger shows what the
    // driver did. In between, ledger and device may differ. A request that takes a unit ahead is no operation: the
    // units show it.
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

    // NVML's figure for this process.
    struct Measured {
        Measured(Bytes figure, bool at_rest = true) noexcept : bytes(figure), ahead_at_rest(at_rest) {}  // NOLINT
        Bytes bytes;
        bool ahead_at_rest;  // no request that took a unit ahead was under way
    };
    static constexpr int kAttempts = 3;
    // Sets the overhead from `measure()`, which returns a Measured (nullopt if NVML has no figure). Calls
    // `changed(bytes)` with the change. False if nothing could be measured.
    //
    // During other operations the overhead is only raised. Memory is charged before the driver allocates it and
    // credited after the driver freed it, so the figure contains at most all charges until after it, less the credits
    // until before it. Do not call it within your own operation: it would never see the ledger at rest.
    template <class Measure, class Changed>
    bool reconcile(Measure measure, Changed changed, int attempts = kAttempts) noexcept {
        for (int attempt = 0; attempt < attempts; ++attempt) {
            const std::uint64_t begun = begun_.load(std::memory_order_seq_cst);
            const bool quiet_before = begun == done_.load(std::memory_order_seq_cst);
            if (attempt > 0 && !quiet_before) return true;  // another figure would be no better than the first
            const Bytes credited_before = seen_by_nvml(credited_);
            const std::optional<Measured> figure = measure();
            if (!figure) return false;
            const Bytes charged_after = seen_by_nvml(charged_), credited_after = seen_by_nvml(credited_);
            const bool quiet = quiet_before && figure->ahead_at_rest && begun == begun_.load(std::memory_order_seq_cst);
            // If quiet, only `measure` has changed the charges (it reconciles the pools), so the newer ones fit the
            // figure.
            const Bytes charged = charged_after - (quiet ? credited_after : credited_before);
            const Bytes overhead = figure->bytes > charged ? figure->bytes - charged : 0;
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
    // Returns the increase.
    Bytes raise_overhead(Bytes to) noexcept;
    // As set_overhead. Returns nullopt and changes nothing if an operation has begun since `begun` was read: `bytes`
    // lacks what that operation leaves to the overhead.
    std::optional<std::int64_t> set_overhead_if(std::uint64_t begun, Bytes bytes) noexcept;
    // The caller holds the lock.
    std::int64_t change_overhead(Bytes to) noexcept;

    // Bytes of each kind, except the overhead. They only grow, modulo 2^64.
    struct Kinds {
        std::atomic<Bytes> bytes[policy::kKinds]{};

        void add(Kind kind, Bytes more) noexcept {
            bytes[static_cast<std::size_t>(kind)].fetch_add(more, std::memory_order_acq_rel);
        }
        [[nodiscard]] Bytes of(Kind kind) const noexcept {
            return bytes[static_cast<std::size_t>(kind)].load(std::memory_order_acquire);
        }
    };
    // Returns charged() - credited(). Returns too little if there are credits in between each time. Returns 0 while
    // memory is credited that another thread has yet to charge.
    template <class Charged, class Credited>
    static Bytes difference(Charged charged, Credited credited) noexcept {
        constexpr int kTries = 4;
        Bytes before = credited(), added = charged(), removed = credited();
        for (int tries = 1; removed != before && tries < kTries; ++tries) {
            before = removed;
            added = charged();
            removed = credited();
        }
        const Bytes held = added - removed;
        return static_cast<std::int64_t>(held) < 0 ? 0 : held;
    }
    // Returns the sum over the kinds that NVML's figure includes: all except managed memory (measured on an H100).
    static Bytes seen_by_nvml(const Kinds &kinds) noexcept {
        Bytes all = 0;
        for (std::size_t kind = 0; kind < policy::kKinds; ++kind)
            if (static_cast<Kind>(kind) != Kind::managed) all += kinds.of(static_cast<Kind>(kind));
        return all;
    }
    // Every request writes these. They share no cache line with fields that requests only read.
    alignas(64) std::atomic<Bytes> held_{0};
    std::atomic<std::uint64_t> begun_{0}, done_{0};
    Kinds charged_, credited_;
    std::atomic<Bytes> overhead_{0};
    // Every request reads these.
    alignas(64) AheadUnits ahead_;
    std::atomic<int> closed_{0};  // number of NothingAhead

    // Held to change the overhead: for a moment, or by open_share() for up to 100 ms. Of requests only those that
    // reconcile take it.
    std::mutex overhead_mutex_;
};

}  // namespace curb::shim
