// The records that were asked for last, by handle, found without the lock of the books that they stand in, which every
// thread would otherwise write to. Thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace curb::shim {

// Of records that are never destroyed: one that is out of date can be looked at, and says itself whose it is.
template <class Handle, class Record>
class Recent {
  public:
    // What was noted last in this handle's place, for this one or another; null: nothing was.
    [[nodiscard]] Record *at(Handle handle) const noexcept {
        return places_[place(handle)].load(std::memory_order_acquire);
    }
    void note(Handle handle, Record *record) noexcept {
        places_[place(handle)].store(record, std::memory_order_release);
    }

  private:
    static constexpr int kBits = 4;

    static std::size_t place(Handle handle) noexcept {
        return reinterpret_cast<std::uintptr_t>(handle) * 0x9E3779B97F4A7C15ULL >> (64 - kBits);
    }

    std::array<std::atomic<Record *>, std::size_t{1} << kBits> places_{};
};

}  // namespace curb::shim
