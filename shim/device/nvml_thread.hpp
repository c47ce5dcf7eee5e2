// The thread curb-nvml, which calls NVML for all others. NVML hangs in the kernel if a GPU has failed or the driver is
// stuck, and such a call cannot be interrupted (docs/decisions/0032).
//
// Threads that want the same figure share one question. Each gets an answer whose reading began after it asked.
// Thread-safe. Takes no lock, except to load NVML.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

namespace curb::shim {

class Meter;
enum class Figure : std::uint8_t;

namespace nvml_thread {

// A query for one figure of one device. Answers are numbered from 1.
struct Question {
    static constexpr std::uint64_t kNone = ~std::uint64_t{0};

    std::atomic<bool> wanted{false};       // curb-nvml should read it again
    std::atomic<std::uint32_t> begun{0};   // number of the reading that began last; only curb-nvml writes it
    std::atomic<std::uint32_t> done{0};    // number of the last complete answer; a futex
    std::atomic<std::uint32_t> asleep{0};  // threads that sleep on `done`
    std::atomic<std::uint64_t> argument{0};
    std::atomic<std::uint64_t> answer{0};
};

// Returns the result of Meter::read() on curb-nvml. Waits up to 2 s (5 s until NVML has answered once). nullopt also if
// NVML does not answer in time. After that every call returns nullopt at once, until NVML has answered in the
// background. Keeps errno.
std::optional<std::uint64_t> ask(Meter &meter, Figure figure, std::uint64_t argument) noexcept;

}  // namespace nvml_thread
}  // namespace curb::shim
