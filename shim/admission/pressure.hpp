// Pressure: one refused allocation, to a framework that answers it by giving back what it caches and by asking again.
// Armed by the release step of that name, and before a growth step.
//
// Never two in a row: the thread that was refused is spared until it has asked again, however long that takes; nobody
// else is refused on the device meanwhile, nor for a second after it. (PyTorch raises its out-of-memory error when the
// second attempt is refused too.)
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "caller_match.hpp"
#include "devices.hpp"
#include "policy/size.hpp"

namespace curb::shim {

// Of one device. Thread-safe; costs two loads while nothing is going on. Leaves errno.
class Pressure {
  public:
    static constexpr std::uint64_t kArmedMs = 10'000;  // a release asked for at noon is not to be felt at night
    static constexpr std::uint64_t kRestMs = 1'000;    // between an answer and the next refusal

    static Pressure &of(const Device &device) noexcept { return all[static_cast<std::size_t>(device.ordinal)]; }

    // The next large allocation is refused. False: one has been refused just now.
    bool arm(std::uint64_t now_ms) noexcept;

    // Whether this allocation, of the calling thread and not yet decided on, is refused for pressure. Every allocation
    // that can be the second attempt of one that was refused comes by here.
    [[nodiscard]] bool refuses(Device &device, Bytes bytes, caller_match::Way way) noexcept {
        return (armed_until_.load(std::memory_order_relaxed) != 0 || spared_.load(std::memory_order_relaxed) != 0) &&
               look(device, bytes, way);
    }
    // Whether it is refused before a growth step is taken for it: armed or not, if the policy has the step.
    [[nodiscard]] bool refuses_growth(Device &device, Bytes bytes, caller_match::Way way) noexcept;

  private:
    bool look(Device &device, Bytes bytes, caller_match::Way way) noexcept;
    // Nobody is refused now: an answer is awaited, or has just come.
    [[nodiscard]] bool rests(std::uint64_t now_ms) noexcept;
    // Makes this thread the one that is refused. False: another one is.
    bool begin(Device &device, std::uint64_t now_ms) noexcept;
    void answered(Device &device, std::uint64_t now_ms) noexcept;

    static constinit std::array<Pressure, devices::kMost> all;

    std::atomic<std::uint64_t> armed_until_{0};  // 0: not armed
    std::atomic<std::uint64_t> rests_until_{0};
    std::atomic<int> spared_{0};         // the thread that was refused and has not asked again; 0: none
    std::atomic<Bytes> held_before_{0};  // of the device, when it was refused
};

}  // namespace curb::shim
