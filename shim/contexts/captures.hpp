// Tracks graph captures in progress. Synchronising a context breaks any capture, in every capture mode (measured,
// docs/results/driver.md), so curb synchronises only while no capture is in progress. Thread-safe.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstddef>
#include <list>
#include <optional>

#include "driver/driver.hpp"

namespace curb::shim::captures {

namespace detail {
inline constinit std::atomic<std::size_t> in_progress{0};
}

// True if a capture is in progress. Costs one load.
inline bool any() noexcept { return detail::in_progress.load() != 0; }

// The stream in which a capture began. Equal records are interchangeable: each end removes one of them.
struct Origin {
    CUstream stream = nullptr;
    pthread_t thread{};           // owner of the default stream, for CU_STREAM_PER_THREAD
    CUcontext context = nullptr;  // the stream ends with it
};
using Origins = std::list<Origin>;

// Returns the record of a capture in this stream; without the context if the program created the stream.
Origin origin_of(CUstream stream) noexcept;
// Call it before a capture begins: completes the record and stores it. False if host memory is exhausted.
bool beginning(Origin &origin) noexcept;
// Call it when the capture has ended or failed to begin.
void has_ended(const Origin &origin) noexcept;

// Guards cuStreamDestroy, which ends the captures that began in the stream. Removes their records before the call,
// because afterwards the driver may return the same handle to another thread. They count as captures until done().
class Destroying : NoCopy {
  public:
    explicit Destroying(CUstream stream) noexcept;
    ~Destroying();
    // Call it when the driver has destroyed the stream. Without it the destructor restores the records.
    void done() noexcept;

  private:
    Origins here_;
};

// Sets the function to run when the last capture in progress ends. It runs within the program's call and must not wait.
void when_the_last_ends(void (*call)() noexcept) noexcept;

// Removes the captures of a destroyed context.
void drop_context(CUcontext context) noexcept;

// True if the stream is being captured. `is_capturing`: the driver function for the caller's default-stream form.
// nullopt if the driver fails.
template <class IsCapturing>
std::optional<bool> capturing(const IsCapturing &is_capturing, CUstream stream) noexcept {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    const auto ask = [&] { return is_capturing(stream, &status); };
    return ask_twice(ask) == CUDA_SUCCESS ? std::optional(status != CU_STREAM_CAPTURE_STATUS_NONE) : std::nullopt;
}

// Synchronises the thread's current context and returns the driver's result. nullopt, without synchronising, if a
// capture is in progress.
std::optional<CUresult> synchronise_current_context() noexcept;

}  // namespace curb::shim::captures
