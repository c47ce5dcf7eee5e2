// A small cache of records by handle. A hit takes no lock: every thread would write to the lock's cache line.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace curb::shim {

// Records must never be destroyed and must name their handle, because a returned record may be out of date.
// Thread-safe.
template <class Handle, class Record>
class Recent {
  public:
    // Returns the last record noted in this handle's slot, which may belong to another handle; null if none was.
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
