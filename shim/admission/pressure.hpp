// Pressure: curb refuses one allocation of a framework that then frees its cache and retries. The release step
// "pressure" arms it; a growth step tries it first.
//
// curb never refuses twice in a row, because PyTorch raises its out-of-memory error when the retry is refused too.
// After a refusal no allocation on the device is refused until that thread has retried, however long that takes, and
// for a second after.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>

#include "admission/caller_match.hpp"
#include "device/devices.hpp"
#include "policy/values/size.hpp"

namespace curb::shim {

// The pressure on one device. Thread-safe. Costs a load while it is not armed. Keeps errno.
class Pressure {
  public:
    static constexpr std::uint64_t kArmedMs = 10'000;  // a request hours later must not pay for this release
    static constexpr std::uint64_t kQuietMs = 1'000;   // between a retry and the next refusal

    static Pressure &of(const Device &device) noexcept { return all[static_cast<std::size_t>(device.ordinal)]; }

    // Has the next large allocation refused. False if one has just been refused.
    bool arm(std::uint64_t now_ms) noexcept;

    // True if this allocation must be refused for pressure. Every hook whose call may be the retry of a refused one
    // must call this first; charged() does, unless Request::retry is Way::none.
    [[nodiscard]] bool refuses(Device &device, Bytes bytes, caller_match::Way way) noexcept {
        return concerns_requests_ && check(device, bytes, way);
    }
    // True if it must be refused before a growth step. Needs no arm(), only the policy's release step "pressure".
    [[nodiscard]] bool refuses_growth(Device &device, Bytes bytes, caller_match::Way way) noexcept;

  private:
    bool check(Device &device, Bytes bytes, caller_match::Way way) noexcept;
    // True if a retry is due, or has just come: nothing may be refused. The caller holds the lock.
    [[nodiscard]] bool is_quiet(std::uint64_t now_ms) noexcept;
    // Makes this thread the refused one. False if a retry is due, or has just come.
    bool start_refusal(Device &device, std::uint64_t now_ms) noexcept;
    void note_retry(Device &device, std::uint64_t now_ms) noexcept;
    // Call it after a change, with the lock.
    void changed() noexcept { concerns_requests_ = armed_until_ms_ != 0 || refused_thread_ != 0; }

    static constinit std::array<Pressure, devices::kMost> all;

    std::mutex mutex_;
    std::uint64_t armed_until_ms_ = 0;  // 0: not armed
    std::uint64_t quiet_until_ms_ = 0;
    int refused_thread_ = 0;  // it has not retried yet; 0: none
    Bytes held_before_ = 0;   // bytes held at the refusal
    // Armed, or a thread has not retried. Atomic because every request reads it.
    std::atomic<bool> concerns_requests_{false};
};

}  // namespace curb::shim
