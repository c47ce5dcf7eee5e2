// The thread that asks NVML. NVML hangs in the kernel where a GPU has failed or the driver is stuck, and a call that
// hangs cannot be ended from outside (docs/decisions/0032).
//
// Threads that want the same figure share one question: each gets an answer that was begun after it asked.
// Thread-safe; no lock is taken.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

namespace curb::shim {

class Meter;
enum class Figure : std::uint8_t;

namespace nvml_thread {

// One figure of one device, as threads ask for it. Answers are numbered from 1.
struct Question {
    static constexpr std::uint64_t kNone = ~std::uint64_t{0};

    std::atomic<bool> wanted{false};       // the thread is to ask again
    std::atomic<std::uint32_t> begun{0};   // the latest answer that was begun; written by the thread
    std::atomic<std::uint32_t> done{0};    // the latest that is there; a futex
    std::atomic<std::uint32_t> asleep{0};  // threads that sleep on it
    std::atomic<std::uint64_t> argument{0};
    std::atomic<std::uint64_t> answer{kNone};
};

// What Meter::read() returns on the thread. Waits for it, for 2 s at the most (5 s until NVML has answered once).
// nullopt also if NVML does not answer in time: from then on nobody waits, until NVML has answered in the background.
// Leaves errno.
std::optional<std::uint64_t> ask(Meter &meter, Figure figure, std::uint64_t argument) noexcept;

}  // namespace nvml_thread
}  // namespace curb::shim
