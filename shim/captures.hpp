// Graph captures in progress. Synchronising a context breaks any capture, whatever the thread's capture mode (measured,
// docs/results/driver.md), so curb synchronises only while there is none.
#pragma once

#include <optional>

#include "driver.hpp"

namespace curb::shim::captures {

// Around the program's cuStreamBeginCapture*: called before the driver is. A synchronisation of ours that has been
// entered but not yet by the driver would break the capture that is about to begin; this waits for that moment to pass,
// 2 ms at the most (a synchronisation already running in the driver does no harm: measured on an H200).
void beginning() noexcept;
void ended() noexcept;  // or it was not begun: the driver refused
bool any() noexcept;

// Waits for the work of the calling thread's current context, unless a graph is being captured: what the driver said of
// it. None: one is.
std::optional<CUresult> synchronise_current_context() noexcept;

}  // namespace curb::shim::captures
