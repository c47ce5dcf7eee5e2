// One pool, or the memory of a device's graphs, with its charge.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>

#include "base/lifetime.hpp"
#include "base/waiting.hpp"
#include "device/devices.hpp"
#include "pools/threshold.hpp"

namespace curb::shim::pools {

// Records are never freed, so that a thread may use one whose pool another thread has just destroyed. They are reused
// for pools of the same device and kind.
//
// Thread-safe. No lock is held across a driver call. The ledger changes under the pool's lock: a thread that finds
// the charge high enough, or no unread units, finds the ledger in step.
class Pool : NoCopy {
  public:
    Pool(Device *on, Kind of, Pool *before) noexcept : device(on), kind(of), next(before) {}

    Device *const device;  // null if not charged: host memory, or another process's
    const Kind kind;       // pools, managed or graphs
    Pool *const next;      // the record that was made before this one
    Threshold threshold;

    // Guards questions to the driver about the pool: a thread that destroys the pool waits for them. False if the pool
    // has ended.
    class Visit : NoCopy {
      public:
        explicit Visit(Pool &pool) noexcept;
        explicit operator bool() const noexcept { return handle_.has_value(); }
        [[nodiscard]] CUmemoryPool handle() const noexcept { return *handle_; }  // null for graphs

      private:
        const BusyCount::Guard visiting_;
        std::optional<CUmemoryPool> handle_;
    };

    // Makes the record that of a new pool. `handle`: null for graphs.
    void start(CUmemoryPool handle) noexcept;
    // Call it before the pool is destroyed: waits for visits, lets no more begin, and trims the pool. Returns the bytes
    // that stay, for live allocations and incomplete frees. Calls the driver.
    Bytes stop() noexcept;
    // The driver has destroyed it. Returns the charge, which the caller credits.
    Bytes end() noexcept;
    // The driver has failed to destroy it. Calls the driver.
    void resume() noexcept;

    [[nodiscard]] Bytes charged() const noexcept { return charged_; }
    // False if the pool has no memory. A program may have thousands of such pools.
    [[nodiscard]] bool may_hold() const noexcept {
        return kind == Kind::graphs || charged_ != 0 || !size_known_ || unread() != 0;
    }
    // Returns the reserved bytes; nullopt if the driver fails or the pool has ended. Calls the driver.
    std::optional<Bytes> reserved() noexcept;
    // Raises the charge to the reserved bytes. Returns the increase, which the caller traces. Calls the driver: after
    // an allocation it breaks no capture that the allocation has not broken, and for graph memory none (the contract
    // suite tests both). In other places the caller must hold RelaxedCapture.
    Bytes raise() noexcept;
    // The same outside a request: traces the increase. The caller holds RelaxedCapture.
    void catch_up() noexcept;
    // Sets the charge to the reserved bytes, and traces the change. The caller holds RelaxedCapture. Calls the driver.
    void settle() noexcept;
    // Trims the pool. Returns the bytes that came back. The caller holds RelaxedCapture. Calls the driver.
    Bytes trim() noexcept;

    // Returns the number of units ahead whose requests have returned since the pool's size was last read.
    [[nodiscard]] std::uint64_t unread() const noexcept;
    // Call it when a request that took a unit has returned.
    void unit_returned() noexcept;
    // True if the pool kept its memory at a synchronisation when curb last asked: requests may take units ahead.
    [[nodiscard]] bool keeps() const noexcept { return keeps_; }
    // True for the first request to a pool that does not keep its memory, and then now and then: most never will.
    bool is_due_to_ask() noexcept { return requests_++ % Ledger::Ahead::kUnits == 0; }
    // Asks whether the pool keeps its memory. Calls the driver.
    void ask_if_it_keeps() noexcept;
    // Call it when the program has set the threshold.
    void threshold_changed() noexcept;

    // These are guarded by the registry's lock.
    Pool *next_unused = nullptr;
    bool shared = false;     // with another process
    std::size_t blocks = 0;  // managed blocks in use
    bool destroyed = false;  // but managed blocks are still in use
    Bytes kept_charged = 0;  // the charge for them

  private:
    // The state before a reading.
    struct Mark {
        std::uint64_t readings, returned;
    };
    [[nodiscard]] Mark mark() const noexcept;
    // Gives the units up to `returned` back to the ledger. The caller holds the lock.
    void give_back(std::uint64_t returned) noexcept;
    enum class Sets : std::uint8_t { raises, exactly };
    std::int64_t read(CUmemoryPool handle, Sets sets) noexcept;
    [[nodiscard]] std::optional<Bytes> size_of(CUmemoryPool handle) const noexcept;
    CUresult trim(CUmemoryPool handle) const noexcept;

    BusyCount visits_;
    std::atomic<bool> keeps_{false};
    std::atomic<std::uint32_t> requests_{0};  // since the program set the threshold; counted while `keeps_` is false

    mutable std::mutex mutex_;
    CUmemoryPool handle_ = nullptr;
    std::uint64_t readings_ = 0;  // of the size
    // These are written under the lock, and read without.
    std::atomic<bool> live_{false}, size_known_{true};
    std::atomic<Bytes> charged_{0};
    std::atomic<std::uint64_t> read_{0};  // of the units below, those that readings cover
    // Units whose requests have returned. Counted before `live_` is read: end() finds a unit that finds the pool live.
    std::atomic<std::uint64_t> returned_{0};
};

}  // namespace curb::shim::pools
