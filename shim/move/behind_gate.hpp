// Objects of the driver that a move makes for itself, while the gate is closed for the program. So a call that ends one
// and fails may run twice: no other thread can have got the handle meanwhile.
#pragma once

#include <cstddef>

#include "base/lifetime.hpp"
#include "driver/driver.hpp"

namespace curb::shim::move {

// Makes a context current in this thread. Empty if that fails.
class CurrentBehindGate : NoCopy {
  public:
    explicit CurrentBehindGate(CUcontext context) noexcept
        : is_current_(driver_behind_gate().cuCtxPushCurrent_v2(context) == CUDA_SUCCESS) {}
    ~CurrentBehindGate() {
        CUcontext context = nullptr;
        if (is_current_) driver_behind_gate().cuCtxPopCurrent_v2(&context);
    }
    explicit operator bool() const noexcept { return is_current_; }

  private:
    bool is_current_;
};

// A stream in the current context that waits for no other one. Empty if there is none.
class Stream : NoCopy {
  public:
    Stream() noexcept {
        if (driver_behind_gate().cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS) stream_ = nullptr;
    }
    ~Stream() {
        if (!stream_) return;
        static_cast<void>(synchronize());  // what its work uses may end with it
        ask_twice([this] { return driver_behind_gate().cuStreamDestroy_v2(stream_); });
    }
    [[nodiscard]] CUstream get() const noexcept { return stream_; }
    explicit operator bool() const noexcept { return stream_ != nullptr; }
    // False if work in it has failed.
    [[nodiscard]] bool synchronize() const noexcept {
        return driver_behind_gate().cuStreamSynchronize.uncounted(stream_) == CUDA_SUCCESS;
    }

  private:
    CUstream stream_ = nullptr;
};

// A point of a stream, which a thread can wait for. Empty if there is none.
class Event : NoCopy {
  public:
    Event() noexcept {
        constexpr unsigned kDisableTiming = 2;  // CU_EVENT_DISABLE_TIMING
        if (driver_behind_gate().cuEventCreate(&event_, kDisableTiming) != CUDA_SUCCESS) event_ = nullptr;
    }
    ~Event() {
        if (event_) ask_twice([this] { return driver_behind_gate().cuEventDestroy_v2(event_); });
    }
    explicit operator bool() const noexcept { return event_ != nullptr; }
    // Sets the point: after all work of the stream so far. False if the driver refuses.
    [[nodiscard]] bool record(const Stream &stream) const noexcept {
        return driver_behind_gate().cuEventRecord(event_, stream.get()) == CUDA_SUCCESS;
    }
    // Returns at once before the first record(). False if work before the point has failed.
    [[nodiscard]] bool wait() const noexcept {
        return driver_behind_gate().cuEventSynchronize.uncounted(event_) == CUDA_SUCCESS;
    }

  private:
    CUevent event_ = nullptr;
};

// Pinned host memory, which every context can reach at its address. Empty if there is none.
class PinnedMemory : NoCopy {
  public:
    explicit PinnedMemory(std::size_t bytes) noexcept {
        constexpr unsigned kPortable = 1;  // CU_MEMHOSTALLOC_PORTABLE
        if (bytes == 0 || driver_behind_gate().cuMemHostAlloc(&begin_, bytes, kPortable) != CUDA_SUCCESS)
            begin_ = nullptr;
    }
    ~PinnedMemory() {
        if (begin_) ask_twice([this] { return driver_behind_gate().cuMemFreeHost(begin_); });
    }
    [[nodiscard]] char *begin() const noexcept { return static_cast<char *>(begin_); }
    explicit operator bool() const noexcept { return begin_ != nullptr; }

  private:
    void *begin_ = nullptr;
};

}  // namespace curb::shim::move
