// How much a process may hold of one device before the next growth step, under one policy. The rules are policy's
// (policy/growth.hpp); here is the state that several threads share.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include "policy/growth.hpp"

namespace curb::shim {

using policy::Bytes;

class Allowance {
  public:
    // Before anybody else sees it.
    void begin(Bytes bytes, std::uint64_t last_step_ms) noexcept;

    [[nodiscard]] Bytes bytes() const noexcept { return bytes_.load(std::memory_order_acquire); }
    [[nodiscard]] std::uint64_t last_step_ms() const noexcept { return stepped_ms_.load(std::memory_order_acquire); }

    // Takes the step that is due. False: another thread has just taken it.
    bool step(const policy::Growth &growth, std::uint64_t now_ms) noexcept;
    // Memory was released: down to what is held. The next step is due as late as after a step. False: nothing changed.
    bool fall_back(const policy::Growth &growth, Bytes held, std::uint64_t now_ms) noexcept;

  private:
    std::mutex mutex_;  // of those who change it
    std::atomic<Bytes> bytes_{policy::kUnbounded};
    std::atomic<std::uint64_t> stepped_ms_{0};
};

}  // namespace curb::shim
