// Bytes that the program freed in streams and the ledger has credited, on a device where NVML cannot show when the
// driver returns them. The driver returns them at a synchronisation, so until curb has synchronised no request may use
// them.
//
// Thread-safe. Takes no lock.
#pragma once

#include <atomic>

#include "policy/size.hpp"

namespace curb::shim {

class ReturnedAtSync {
  public:
    using Bytes = policy::Bytes;

    // True if add() was ever called, for any device.
    static bool ever() noexcept { return ever_.load(std::memory_order_acquire); }

    // Call it after the free and before the credit.
    void add(Bytes bytes) noexcept {
        ever_.store(true, std::memory_order_release);
        added_.fetch_add(bytes, std::memory_order_acq_rel);
    }
    [[nodiscard]] Bytes now() const noexcept {
        // In this order, an addition in between makes the result too high but never wraps it.
        const Bytes synchronised = synchronised_.load(std::memory_order_acquire);
        return added_.load(std::memory_order_acquire) - synchronised;
    }
    // Returns a mark for all bytes added so far. Pass it to synchronised() after a synchronisation that began later.
    [[nodiscard]] Bytes mark() const noexcept { return added_.load(std::memory_order_acquire); }
    void synchronised(Bytes mark) noexcept {
        Bytes before = synchronised_.load(std::memory_order_acquire);
        while (before < mark && !synchronised_.compare_exchange_weak(before, mark, std::memory_order_acq_rel)) {
        }
    }

  private:
    static inline constinit std::atomic<bool> ever_{false};
    std::atomic<Bytes> added_{0}, synchronised_{0};
};

}  // namespace curb::shim
