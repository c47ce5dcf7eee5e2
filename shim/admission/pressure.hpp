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

#include "admission/caller_match.hpp"
#include "device/devices.hpp"
#include "policy/values/size.hpp"

namespace curb::shim {

// The pressure on one device. Thread-safe. Costs two loads while it is not armed. Keeps errno.
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
        return (armed_until_.load(std::memory_order_relaxed) != 0 ||
                refused_thread_.load(std::memory_order_relaxed) != 0) &&
               check(device, bytes, way);
    }
    // True if it must be refused before a growth step. Needs no arm(), only the policy's release step "pressure".
    [[nodiscard]] bool refuses_growth(Device &device, Bytes bytes, caller_match::Way way) noexcept;

  private:
    bool check(Device &device, Bytes bytes, caller_match::Way way) noexcept;
    // True if a retry is due, or has just come: nothing may be refused.
    [[nodiscard]] bool is_quiet(std::uint64_t now_ms) noexcept;
    // Makes this thread the refused one. False if another one is.
    bool start_refusal(Device &device, std::uint64_t now_ms) noexcept;
    void note_retry(Device &device, std::uint64_t now_ms) noexcept;

    static constinit std::array<Pressure, devices::kMost> all;

    std::atomic<std::uint64_t> armed_until_{0};  // 0: not armed
    std::atomic<std::uint64_t> quiet_until_{0};
    std::atomic<int> refused_thread_{0};  // it has not retried yet; 0: none
    std::atomic<Bytes> held_before_{0};   // bytes held at the refusal
};

}  // namespace curb::shim
