// The libcuda that the program has loaded. Thread-safe.
#pragma once

#include "base/libraries.hpp"

namespace curb::shim::libcuda {

// Records the loaded libcuda, by its handle.
void found(void *handle) noexcept;

// Returns libcuda's function of this name. Null if it has none, or is not loaded.
void *function(const char *symbol) noexcept;
// Returns its addresses; empty while it is not loaded.
Range range() noexcept;

}  // namespace curb::shim::libcuda
