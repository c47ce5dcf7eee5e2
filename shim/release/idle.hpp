// Whether the process uses the GPU: the release that a policy may ask for when it has not for a while
// (`release.idle`).
#pragma once

#include <cstdint>
#include <optional>

namespace curb::shim::idle {

// A release has ended: what it freed is no use by the program. On the worker.
void released() noexcept;

// Looks what the process did since the last look, and asks for a release when it is due. Returns how many milliseconds
// from now it wants to look again; none: the policy asks for none. On the worker.
std::optional<std::uint64_t> poll() noexcept;

}  // namespace curb::shim::idle
