// How fresh the figures of a device are: when the ledger was reconciled, which threads reconcile it now, and whether
// the driver may have taken or returned memory since. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <utility>

#include "base/lifetime.hpp"
#include "host/clock.hpp"
#include "policy/values/size.hpp"

namespace curb::shim {

using policy::Bytes;

class Freshness : NoCopy {
  public:
    // Returns the time since the last reconcile began.
    [[nodiscard]] std::uint64_t age_ms() const noexcept { return now_ms() - measured_ms_; }
    // True if the driver may have taken or returned memory since then.
    [[nodiscard]] bool has_changed() const noexcept { return changed_; }
    // Call it when the driver may have taken memory of its own. Readings that began before do not count as fresh.
    void note_taken() noexcept {
        const std::scoped_lock lock(lock_);
        grown_ = true;
        changed_ = true;
    }
    // Call it when the driver may have returned memory.
    void note_returned() noexcept { changed_ = true; }

    // Has the worker reconcile the device. True if it was not asked yet.
    bool ask_soon() noexcept {
        const std::scoped_lock lock(lock_);
        return !std::exchange(soon_, true);
    }
    // True if it was asked since the last call.
    bool take_soon() noexcept {
        const std::scoped_lock lock(lock_);
        return std::exchange(soon_, false);
    }

    // One reconcile: from before NVML is read until the ledger has the figure.
    class Reconciling : NoCopy {
      public:
        explicit Reconciling(Freshness &device) noexcept : device_(device), began_us_(now_us()) {
            device_.measured_ms_ = now_ms();
            const std::scoped_lock lock(device_.lock_);
            device_.changed_ = false;
            covers_growth_ = std::exchange(device_.grown_, false);
            if (covers_growth_) ++device_.covering_growth_;
        }
        ~Reconciling() {
            const std::scoped_lock lock(device_.lock_);
            device_.figure_us_ = began_us_;
            if (covers_growth_) --device_.covering_growth_;
        }

      private:
        Freshness &device_;
        const std::uint64_t began_us_;
        bool covers_growth_ = false;  // the driver may have taken memory before
    };

    // A request near the cap, which needs a fresh figure.
    class NearCap : NoCopy {
      public:
        explicit NearCap(Freshness &device) noexcept : device_(device) {
            constexpr std::uint64_t kFreshUs = 1000;
            const std::uint64_t now = now_us();
            const std::scoped_lock lock(device_.lock_);
            is_alone_ = device_.near_cap_++ == 0;
            is_fresh_ = !device_.grown_ && device_.covering_growth_ == 0 && now - device_.figure_us_ < kFreshUs;
        }
        ~NearCap() {
            const std::scoped_lock lock(device_.lock_);
            --device_.near_cap_;
        }
        // True if no other such request is under way.
        [[nodiscard]] bool is_alone() const noexcept { return is_alone_; }
        // True if the last figure is less than a millisecond old, and the driver has not taken memory since.
        [[nodiscard]] bool is_fresh() const noexcept { return is_fresh_; }

      private:
        Freshness &device_;
        bool is_alone_, is_fresh_;
    };

    // Returns the bytes that this process could hold if it took all free memory, as last measured.
    [[nodiscard]] Bytes reach() const noexcept { return reach_; }
    // Returns the time since their last measurement began.
    [[nodiscard]] std::uint64_t reach_age_ms() const noexcept { return now_ms() - reach_ms_; }
    void note_reach_asked() noexcept { reach_ms_ = now_ms(); }
    void set_reach(Bytes bytes) noexcept { reach_ = bytes; }

  private:
    // Single figures, of which requests read the latest without the lock.
    std::atomic<std::uint64_t> measured_ms_{0};  // when the last reconcile began
    std::atomic<bool> changed_{false};           // the driver may have taken or returned memory since
    std::atomic<Bytes> reach_{0};
    std::atomic<std::uint64_t> reach_ms_{0};  // when it was measured

    std::mutex lock_;              // guards the rest
    bool soon_ = false;            // the worker should reconcile
    bool grown_ = false;           // the driver may have taken memory since the last reconcile began
    int covering_growth_ = 0;      // reconciles under way that cover such memory
    int near_cap_ = 0;             // requests near the cap that reconcile, or would
    std::uint64_t figure_us_ = 0;  // when the last complete reconcile began
};

}  // namespace curb::shim
