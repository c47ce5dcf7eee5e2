// The ledger of one device: the bytes that this process holds.
//
// held() = the charges of every kind + overhead. The overhead is NVML's figure for the process minus the charges that
// NVML sees: code, heaps, workspaces of the driver. Requests reserve and credit; reconcile() sets the overhead.
//
// Thread-safe. One lock guards all figures, for some 20 ns at a time. Under it the ledger calls only policy/ and the
// wait-free additions of the job's share. (The lock does not inherit priority: where a filter of system calls forbids
// that, as in Chromium's sandbox, glibc or the filter would end the process.)
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string_view>

#include "base/lifetime.hpp"
#include "job/job_ledger.hpp"
#include "policy/decisions/decide.hpp"
#include "policy/kinds.hpp"
#include "policy/values/granule.hpp"
#include "policy/values/size.hpp"

namespace curb::shim {

using policy::Bytes;
using policy::Kind;

class Ledger : NoCopy {
  public:
    // Adds `bytes` if the policy grants them. On `grant` the caller must end() the operation that has begun. Otherwise
    // the ledger is unchanged; if the job's cap refused, `terms` show what its other processes hold now. `*seen` gets
    // the bytes that the decision counted: held_until_sync() and those ahead.
    policy::Verdict reserve(Kind kind, Bytes bytes, policy::Terms &terms, Bytes *seen = nullptr) noexcept;
    // Adds bytes that the driver has taken already (a pool that grew more than expected).
    void charge(Kind kind, Bytes bytes) noexcept;
    void credit(Kind kind, Bytes bytes) noexcept;

    // Units of device memory that a ledger grants before requests to pools ask, far from the limits. Such a request
    // takes a unit and asks neither for the limits nor for the pool's size. One request can make its pool grow by one
    // unit at most. A unit is first offered, then a request's, then its pool's, until curb has read the pool's size
    // (pools.hpp). Decisions count all units as taken; held() and the kinds count none.
    struct Ahead {
        static constexpr Bytes kUnit = policy::kPoolUnit;
        static constexpr std::uint64_t kUnits = 16;  // so many are offered at once

        std::uint64_t offered = 0, taken = 0;  // units
        std::uint64_t takes = 0;               // of units, since the start
        std::uint64_t take_backs = 0;          // calls of take_back_ahead(), since the start

        [[nodiscard]] Bytes bytes() const noexcept { return (offered + taken) * kUnit; }
        // Returns the bytes of those that requests have taken: the most that pools may have grown by since curb read
        // their sizes.
        [[nodiscard]] Bytes unread() const noexcept { return taken * kUnit; }
    };
    [[nodiscard]] Ahead ahead() const noexcept;
    // False if no request has a unit, and all that returned were read. Takes no lock.
    [[nodiscard]] bool has_unread() const noexcept { return ahead_ != offered_; }
    // Offers units ahead if none is offered. False if requests would then be near the limit, if one demands exact
    // figures, or if units were taken back since `take_backs` was read. Read that before the terms. Take them back
    // after limits were lowered.
    bool reserve_ahead(const policy::Terms &terms, std::uint64_t take_backs) noexcept;
    // Takes an offered unit. False if there is none. This is no operation: the units show it.
    bool take_ahead() noexcept;
    // Returns units that were taken.
    void give_back_ahead(std::uint64_t units) noexcept;
    // Takes back the units that are offered.
    void take_back_ahead() noexcept;
    // From begin() to its end, nothing is offered ahead.
    class NothingAhead : NoCopy {
      public:
        ~NothingAhead();
        // Later calls do nothing.
        void begin(Ledger &ledger) noexcept;

      private:
        Ledger *ledger_ = nullptr;
    };

    [[nodiscard]] Bytes held() const noexcept { return held_.load(std::memory_order_relaxed); }
    [[nodiscard]] Bytes overhead() const noexcept { return overhead_.load(std::memory_order_relaxed); }
    // Returns 0 while memory is credited that another thread has yet to charge.
    [[nodiscard]] Bytes of(Kind kind) const noexcept;
    // Returns the bytes credited since the start. It changes with each free, but for those of managed memory.
    [[nodiscard]] Bytes credited() const noexcept;
    // Returns held() plus the bytes that the driver returns only at a synchronisation: requests cannot use these yet.
    [[nodiscard]] Bytes held_until_sync() const noexcept;

    // Bytes that the program freed in streams and the ledger credits next, on a device where NVML cannot show when the
    // driver returns them. The driver returns them at a synchronisation, so no request may use them until curb has
    // synchronised: it reads the mark, synchronises, and passes the mark.
    void add_returned_at_sync(Bytes bytes) noexcept;
    [[nodiscard]] Bytes sync_mark() const noexcept;
    void synchronised(Bytes mark) noexcept;
    // True if add_returned_at_sync() was ever called, for any device.
    static bool has_returned_at_sync() noexcept { return has_returned_at_sync_; }

    // This ledger as the other processes of the job see it. Every change of the bytes held changes it too.
    job::Share share;
    // Opens the share in the job that the process has joined. Requests may run meanwhile. False as Share::open().
    bool open_share(std::string_view uuid) noexcept;

    // Every change of memory is an operation: it begins before the driver call and ends when the ledger shows what the
    // driver did. In between, ledger and device may differ.
    void begin() noexcept;
    void end() noexcept;

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
            const Before before = now();
            if (attempt > 0 && !before.quiet) return true;  // another figure would be no better than the first
            const std::optional<Measured> figure = measure();
            if (!figure) return false;
            const auto [change, at_rest] = settle(before, *figure);
            if (change != 0 || at_rest) changed(change);
            if (at_rest) return true;
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
    // The ledger before a measurement.
    struct Before {
        std::uint64_t begun;
        bool quiet;  // no operation was under way
        Bytes credited;
    };
    [[nodiscard]] Before now() const noexcept;
    // Sets the overhead from `figure`, or only raises it if an operation was under way since `before`.
    struct Settled {
        std::int64_t change;
        bool at_rest;
    };
    Settled settle(const Before &before, const Measured &figure) noexcept;

    // Asks the job for `bytes` that this ledger has added already, but not shown to the job. Takes them back on another
    // verdict than `grant`.
    policy::Verdict reserve_in_job(Kind kind, Bytes bytes, policy::Terms &terms, Bytes counted) noexcept;

    // The caller holds the lock. Negative changes are modulo 2^64.
    void set_held(Bytes bytes) noexcept { held_.store(bytes, std::memory_order_relaxed); }
    void change_held(Bytes by) noexcept;  // shows it to the job too
    void add_to_kind(Kind kind, Bytes bytes) noexcept;
    void take_from_kind(Kind kind, Bytes bytes) noexcept;
    std::int64_t change_overhead(Bytes to) noexcept;
    [[nodiscard]] Bytes held_until_sync_locked() const noexcept;
    // Returns the bytes that a decision counts: those and `units` ahead.
    [[nodiscard]] Bytes counted(std::uint64_t units) const noexcept {
        return policy::added(held_until_sync_locked(), units * Ahead::kUnit);
    }

    alignas(64) mutable std::mutex lock_;
    std::atomic<Bytes> held_{0}, overhead_{0};  // written under the lock, and read by others without it
    std::array<Bytes, policy::kKinds> kinds_{};
    Bytes charged_ = 0, credited_ = 0;    // since the start, of the kinds that NVML sees
    std::uint64_t begun_ = 0, done_ = 0;  // operations
    Bytes returned_at_sync_ = 0, synchronised_ = 0;
    // A request to a pool takes a unit without the lock: a stream-ordered pair takes 0.6 us, of which the lock was 4 %.
    // So `offered_` also decreases without it; `ahead_` counts the units that are offered or taken.
    std::atomic<std::uint64_t> offered_{0};
    std::atomic<std::uint64_t> ahead_{0};
    std::uint64_t offers_ = 0;      // units offered since the start, but for those taken back
    std::uint64_t take_backs_ = 0;  // calls of take_back_ahead()
    int exact_ = 0;                 // number of NothingAhead

    static inline constinit std::atomic<bool> has_returned_at_sync_{false};
};

}  // namespace curb::shim
