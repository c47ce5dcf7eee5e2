// A device's primary context, made current for a while if the program has it. Never makes one: that takes hundreds of
// megabytes.
#pragma once

#include "driver.hpp"

namespace curb::shim::release {

class PrimaryContext {
  public:
    explicit PrimaryContext(CUdevice device) noexcept : device_(device) {
        CUcontext context = nullptr;
        if (!exists(device) || driver().cuDevicePrimaryCtxRetain(&context, device) != CUDA_SUCCESS) return;
        // The reference keeps it alive meanwhile.
        current_ = driver().cuCtxPushCurrent_v2(context) == CUDA_SUCCESS;
        if (!current_) release();
    }
    ~PrimaryContext() {
        if (!current_) return;
        CUcontext popped = nullptr;
        insist([&] { return driver().cuCtxPopCurrent_v2(&popped); });
        release();
    }
    PrimaryContext(const PrimaryContext &) = delete;
    PrimaryContext &operator=(const PrimaryContext &) = delete;

    [[nodiscard]] static bool exists(CUdevice device) noexcept {
        unsigned flags = 0;
        int active = 0;
        return driver().cuDevicePrimaryCtxGetState(device, &flags, &active) == CUDA_SUCCESS && active;
    }
    [[nodiscard]] bool current() const noexcept { return current_; }

  private:
    void release() const noexcept {
        insist([this] { return driver().cuDevicePrimaryCtxRelease_v2(device_); });
    }

    CUdevice device_;
    bool current_ = false;
};

}  // namespace curb::shim::release
