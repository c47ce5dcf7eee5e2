// Bytes of a device that the program has freed in streams and the books have credited, where NVML cannot tell when the
// driver has them back. The driver gives them back at a synchronisation, so until curb has synchronised they are no
// room for others.
//
// Thread-safe, without a lock.
#pragma once

#include <atomic>

#include "policy/size.hpp"

namespace curb::shim {

class ReturnedAtSync {
  public:
    using Bytes = policy::Bytes;

    // Whether there has been any, of any device.
    static bool ever() noexcept { return ever_.load(std::memory_order_acquire); }

    // After the free, before its bytes are credited.
    void add(Bytes bytes) noexcept {
        ever_.store(true, std::memory_order_release);
        added_.fetch_add(bytes, std::memory_order_acq_rel);
    }
    [[nodiscard]] Bytes now() const noexcept {
        // In this order: what is added in between makes the sum too high, and never wraps it.
        const Bytes synchronised = synchronised_.load(std::memory_order_acquire);
        return added_.load(std::memory_order_acquire) - synchronised;
    }
    // All that had been added at a moment. A synchronisation that began after it ends its wait.
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
