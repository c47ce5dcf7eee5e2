// The release threshold of a pool, which curb lowers for a release while the program still reads its own.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>

#include "base/waiting.hpp"
#include "driver/driver.hpp"

namespace curb::shim::pools {

// A pool's release threshold: the unused bytes it keeps at a synchronisation. While lowered, it is 0 in the driver, and
// the program still reads the value it has set. Thread-safe. Holds no lock while calling the driver.
class Threshold {
  public:
    // Handles the program's set call. `call` sets it in the driver.
    template <class Call>
    CUresult set(std::uint64_t value, Call call) {
        const BusyCount::Guard guard(setting_);
        return keep(value) ? CUDA_SUCCESS : call();
    }
    // Handles the program's get call. `call` has the driver write it to `value`.
    template <class Call>
    CUresult get(std::uint64_t &value, Call call) {
        for (;;) {
            const std::uint64_t before = restored();
            const CUresult result = call();
            if (result != CUDA_SUCCESS || settles(value, before)) return result;
        }
    }

    void lower(CUmemoryPool pool) noexcept;
    void restore(CUmemoryPool pool) noexcept;
    // Resets it for a new pool in the same record.
    void start_anew() noexcept;

  private:
    bool keep(std::uint64_t value) noexcept;  // stores the program's value; false if not lowered
    std::uint64_t restored() noexcept;
    // While lowered, replaces the driver's answer by the program's value. False if the answer may be older than a
    // restoration: ask the driver again.
    bool settles(std::uint64_t &value, std::uint64_t restored_before) noexcept;

    std::mutex mutex_;
    bool lowered_ = false;
    std::optional<std::uint64_t> program_;  // the program's value; nullopt while the driver still has it
    std::uint64_t restored_ = 0;            // number of restorations
    BusyCount setting_;                     // threads that may be setting it in the driver
};

}  // namespace curb::shim::pools
