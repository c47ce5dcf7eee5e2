// What curb does from time to time by itself, on the thread curb-control (server.cpp).
#pragma once

#include <cstdint>
#include <optional>

namespace curb::shim::periodic {

// Does what is due now. Returns in how many milliseconds it wants to be called again; none: only after
// server::wake(). Must not wait and must not call the driver, which may be stuck, or requests for the status would go
// unanswered: what takes time is asked of the worker.
std::optional<std::uint64_t> run() noexcept;

}  // namespace curb::shim::periodic
