// The switch of the trace.
#pragma once

#include <atomic>
#include <cstdint>

namespace curb::shim::trace {

namespace detail {
inline constinit std::atomic<bool> recording{false};
}  // namespace detail

// Thread-safe. Costs one load.
inline bool on() noexcept { return detail::recording; }

}  // namespace curb::shim::trace
