// Periodic work, on the worker between releases: frees blocks kept too long, requests a release of an idle process, and
// has pools return more memory while the process is above its limit.
#pragma once

#include <cstdint>
#include <optional>

namespace curb::shim::periodic {

// Does the work that is due. Returns the milliseconds until the next call. nullopt: only after worker::wake_up().
std::optional<std::uint64_t> run() noexcept;

}  // namespace curb::shim::periodic
