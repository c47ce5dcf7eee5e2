// Graph captures in progress. Synchronising a context breaks any capture, whatever the thread's capture mode (measured,
// docs/results/driver.md), so curb synchronises only while there is none.
#pragma once

#include <optional>

#include "driver.hpp"

namespace curb::shim::captures {

bool any() noexcept;

// Waits for the work of the calling thread's current context, unless a graph is being captured: what the driver said of
// it. None: one is.
std::optional<CUresult> synchronise_current_context() noexcept;

}  // namespace curb::shim::captures
