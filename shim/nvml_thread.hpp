// The thread on which curb calls NVML. NVML may hang in the kernel, with a GPU that has failed or a driver that is
// stuck, and the program's own calls must not hang with it: who asks for a figure goes on without one after a while.
#pragma once

#include <cstdint>
#include <optional>

#include "meter.hpp"

namespace curb::shim::nvml_thread {

// Returns a figure of the device as NVML has it. nullopt if NVML has none, or does not answer: at once while an earlier
// call has not returned. Thread-safe; leaves errno.
std::optional<std::uint64_t> ask(Meter &meter, Meter::Figure figure, std::uint64_t argument = 0) noexcept;

}  // namespace curb::shim::nvml_thread
