// Graph captures in progress. Synchronising a context breaks any capture, whatever the thread's capture mode (measured,
// docs/results/driver.md), so curb synchronises only while there is none.
#pragma once

#include <optional>

#include "driver.hpp"

namespace curb::shim::captures {

bool any() noexcept;

// The context is gone, and with it the captures of its streams.
void drop_context(CUcontext context) noexcept;

// Whether this stream is being captured, asked by the function of its form of the default stream. None: the driver does
// not tell.
template <class IsCapturing>
std::optional<bool> capturing(const IsCapturing &is_capturing, CUstream stream) noexcept {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    const auto ask = [&] { return is_capturing(stream, &status); };
    return insist(ask) == CUDA_SUCCESS ? std::optional(status != CU_STREAM_CAPTURE_STATUS_NONE) : std::nullopt;
}

// Waits for the work of the calling thread's current context, unless a graph is being captured: what the driver said of
// it. None: one is.
std::optional<CUresult> synchronise_current_context() noexcept;

}  // namespace curb::shim::captures
