#include "allowance.hpp"

namespace curb::shim {

void Allowance::begin(Bytes bytes, std::uint64_t last_step_ms) noexcept {
    bytes_.store(bytes, std::memory_order_relaxed);
    stepped_ms_.store(last_step_ms, std::memory_order_relaxed);
}

bool Allowance::step(const policy::Growth &growth, std::uint64_t now_ms) noexcept {
    const std::scoped_lock lock(mutex_);
    if (policy::until_step(growth, now_ms, last_step_ms()) != 0) return false;
    stepped_ms_.store(now_ms, std::memory_order_release);
    bytes_.store(policy::after_step(growth, bytes()), std::memory_order_release);
    return true;
}

bool Allowance::fall_back(const policy::Growth &growth, Bytes held, std::uint64_t now_ms) noexcept {
    const std::scoped_lock lock(mutex_);
    const Bytes before = bytes(), after = policy::fallen_back(growth, before, held);
    if (after == before) return false;
    stepped_ms_.store(now_ms, std::memory_order_release);
    bytes_.store(after, std::memory_order_release);
    return true;
}

}  // namespace curb::shim
