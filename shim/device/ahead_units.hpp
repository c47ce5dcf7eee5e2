// Units of device memory that a ledger reserves ahead: it grants them before requests to pools ask, so that such a
// request takes one by a single atomic operation. One request can make its pool grow by one unit at most. Thread-safe,
// lock-free.
#pragma once

#include <atomic>
#include <cstdint>

#include "device/wake_waiting.hpp"
#include "policy/values/granule.hpp"
#include "policy/values/size.hpp"

namespace curb::shim {

using policy::Bytes;

// A unit is first offered, then a request's, then its pool's, until curb has read the pool's size (pools.hpp).
// Decisions count all units as taken; Ledger::held() and the kinds count none.
class AheadUnits {
  public:
    static constexpr Bytes kUnit = policy::kPoolUnit;
    static constexpr std::uint32_t kUnits = 16;  // so many are offered at once

    // Takes an offered unit. False if there is none.
    bool take() noexcept {
        std::uint64_t before = word_.load(std::memory_order_relaxed);
        while (offered(before) != 0)
            if (word_.compare_exchange_weak(before, before - 1, std::memory_order_seq_cst, std::memory_order_relaxed))
                return true;
        return false;
    }
    [[nodiscard]] bool offers() const noexcept { return offered(word_.load(std::memory_order_relaxed)) != 0; }
    // Returns the bytes of all units.
    [[nodiscard]] Bytes bytes() const noexcept { return reserved(word_.load(std::memory_order_seq_cst)); }
    // Returns the bytes of those that requests have taken: the most that pools may have grown by since curb read their
    // sizes.
    [[nodiscard]] Bytes unread() const noexcept {
        const std::uint64_t now = word_.load(std::memory_order_seq_cst);
        return reserved(now) - (offered(now) + announced(now)) * kUnit;
    }
    // Changes with every take(). It can return to an old value only within an operation of the ledger, because units
    // are offered only there.
    [[nodiscard]] std::uint64_t takes_mark() const noexcept {
        const std::uint64_t now = word_.load(std::memory_order_seq_cst);
        return now / kOneTakeBack << 16 | now % kOneReserved;
    }
    // Returns the number of units that requests have taken.
    [[nodiscard]] std::uint64_t taken() const noexcept { return unread() / kUnit; }
    // Returns units that were taken.
    void give_back(std::uint64_t units) noexcept {
        if (units == 0) return;
        word_.fetch_sub(units * kOneReserved, std::memory_order_seq_cst);
        wait_queue::changed();
    }

    // Reserves kUnits more, and announces them: decisions count them, no request can take them. `allowed(bytes)`: may
    // so many be reserved? False if not, if there are offered ones, or if units were taken back since `take_backs` was
    // read.
    template <class Allowed>
    bool announce(std::uint64_t take_backs, Allowed allowed) noexcept {
        std::uint64_t now = word_.load(std::memory_order_seq_cst);
        // Even for a moment the bytes would be in the way of a request that needs them: so `allowed` comes first.
        return now / kOneTakeBack == take_backs && offered(now) + announced(now) == 0 &&
               allowed(reserved(now) + kUnits * kUnit) &&
               word_.compare_exchange_strong(now, now + kUnits * kOneReserved + kAnnounced, std::memory_order_seq_cst);
    }
    // Offers the announced units. False if another thread has taken them back.
    bool offer(std::uint64_t take_backs) noexcept {
        std::uint64_t now = word_.load(std::memory_order_seq_cst);
        const auto taken_back = [&] { return now / kOneTakeBack != take_backs; };
        while (!taken_back() &&
               !word_.compare_exchange_weak(now, now - kAnnounced + kUnits, std::memory_order_seq_cst)) {
        }
        return !taken_back();
    }
    // Takes back the units that are offered or announced.
    void take_back() noexcept {
        std::uint64_t before = word_.load(std::memory_order_seq_cst), units = 0;
        do {
            units = offered(before) + announced(before);
        } while (!word_.compare_exchange_weak(
            before, before / kOneReserved * kOneReserved - units * kOneReserved + kOneTakeBack,
            std::memory_order_seq_cst));
        if (units != 0) wait_queue::changed();
    }
    // Returns the number of calls of take_back(), modulo 2^24.
    [[nodiscard]] std::uint64_t take_backs() const noexcept {
        return word_.load(std::memory_order_seq_cst) / kOneTakeBack;
    }

  private:
    // The word, from its low bits: the units that are offered, whether kUnits are announced, all units, and the number
    // of take-backs.
    static constexpr std::uint64_t kAnnounced = std::uint64_t{1} << 15, kOneReserved = kAnnounced << 1,
                                   kOneTakeBack = std::uint64_t{1} << 40;
    static constexpr std::uint64_t offered(std::uint64_t word) noexcept { return word % kAnnounced; }
    static constexpr std::uint64_t announced(std::uint64_t word) noexcept {
        return (word & kAnnounced) != 0 ? kUnits : 0;
    }
    static constexpr Bytes reserved(std::uint64_t word) noexcept { return word % kOneTakeBack / kOneReserved * kUnit; }

    std::atomic<std::uint64_t> word_{0};
};

}  // namespace curb::shim
