// Graph captures in progress. Synchronising a context breaks any capture, whatever the thread's capture mode (measured,
// docs/results/driver.md), so curb synchronises only while there is none.
#pragma once

#include <pthread.h>

#include <list>
#include <optional>

#include "driver.hpp"

namespace curb::shim::captures {

bool any() noexcept;

// The stream that a capture began in. Equal records are interchangeable: one of them is forgotten at each end.
struct Origin {
    CUstream stream = nullptr;
    pthread_t thread{};           // whose default stream it is, if it is CU_STREAM_PER_THREAD
    CUcontext context = nullptr;  // with which the stream goes
};
using Origins = std::list<Origin>;

// The record of a capture in this stream. Without a context if the program created the stream.
Origin origin_of(CUstream stream) noexcept;
// A capture is about to begin: completes its record and keeps it. False: no host memory for that.
bool beginning(Origin &origin) noexcept;
// It has ended, or never began.
void has_ended(const Origin &origin) noexcept;

// Around the driver's cuStreamDestroy, which ends the captures that began in the stream. Their records go first:
// afterwards the driver may give the same handle to another thread's stream. They count until done().
class Destroying {
  public:
    explicit Destroying(CUstream stream) noexcept;
    ~Destroying();
    Destroying(const Destroying &) = delete;
    Destroying &operator=(const Destroying &) = delete;
    // The driver has destroyed the stream. Without it the records come back.
    void done() noexcept;

  private:
    Origins here_;
};

// `call` is called when the last capture in progress has ended, within the program's call: it must not wait.
void when_the_last_ends(void (*call)() noexcept) noexcept;

// The context is gone, and with it the captures of its streams.
void drop_context(CUcontext context) noexcept;

// Whether this stream is being captured, asked by the function of its form of the default stream. None: the driver does
// not tell.
template <class IsCapturing>
std::optional<bool> capturing(const IsCapturing &is_capturing, CUstream stream) noexcept {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    const auto ask = [&] { return is_capturing(stream, &status); };
    return ask_twice(ask) == CUDA_SUCCESS ? std::optional(status != CU_STREAM_CAPTURE_STATUS_NONE) : std::nullopt;
}

// Waits for the work of the calling thread's current context, unless a graph is being captured: what the driver said of
// it. None: one is.
std::optional<CUresult> synchronise_current_context() noexcept;

}  // namespace curb::shim::captures
