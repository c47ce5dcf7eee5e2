// What curb does from time to time by itself, on the worker, between releases: blocks that were kept for too long go
// back, an idle process is noticed, and pools give back more while the process is beyond its limit.
#pragma once

#include <cstdint>
#include <optional>

namespace curb::shim::periodic {

// Does what is due now. Returns in how many milliseconds it wants to be called again; none: only after
// worker::wake_up().
std::optional<std::uint64_t> run() noexcept;

}  // namespace curb::shim::periodic
