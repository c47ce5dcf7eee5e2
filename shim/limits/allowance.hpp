// The allowance of one device under one policy: the bytes that the process may hold before the next growth step. The
// rules are in policy/growth.hpp; this is the shared state. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include "policy/growth.hpp"

namespace curb::shim {

using policy::Bytes;

class Allowance {
  public:
    // Called before other threads can see it.
    void begin(Bytes bytes, std::uint64_t last_step_ms) noexcept;

    [[nodiscard]] Bytes bytes() const noexcept { return bytes_.load(std::memory_order_acquire); }
    [[nodiscard]] std::uint64_t last_step_ms() const noexcept { return stepped_ms_.load(std::memory_order_acquire); }

    // Takes the growth step that is due. False if another thread has just taken it.
    bool step(const policy::Growth &growth, std::uint64_t now_ms) noexcept;
    // Lowers the allowance to `held` after a release and restarts the time to the next step. False if nothing changed.
    bool fall_back(const policy::Growth &growth, Bytes held, std::uint64_t now_ms) noexcept;

  private:
    std::mutex mutex_;  // held by writers
    std::atomic<Bytes> bytes_{policy::kUnbounded};
    std::atomic<std::uint64_t> stepped_ms_{0};
};

}  // namespace curb::shim
