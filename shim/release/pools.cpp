// Step "pools": memory that stream-ordered pools reserve but do not use.
//
// A trim gives back only what the host has seen complete, so the device's primary context is synchronised first; not
// during a graph capture, which that would break. Then only what is known complete comes back, by the relaxed mode.

#include "pools.hpp"

#include "captures.hpp"
#include "devices.hpp"
#include "release/plan.hpp"

namespace curb::shim::release::step {
namespace {

// Makes the primary context current for a while, if the program has it. The reference keeps it alive meanwhile.
class PrimaryContext {
  public:
    explicit PrimaryContext(int ordinal) noexcept : ordinal_(ordinal) {
        unsigned flags = 0;
        int active = 0;
        CUcontext context = nullptr;
        if (driver().cuDevicePrimaryCtxGetState(ordinal, &flags, &active) != CUDA_SUCCESS || !active) return;
        if (driver().cuDevicePrimaryCtxRetain(&context, ordinal) != CUDA_SUCCESS) return;
        current_ = driver().cuCtxPushCurrent_v2(context) == CUDA_SUCCESS;
        if (!current_) driver().cuDevicePrimaryCtxRelease_v2(ordinal);
    }
    ~PrimaryContext() {
        if (!current_) return;
        CUcontext popped = nullptr;
        driver().cuCtxPopCurrent_v2(&popped);
        driver().cuDevicePrimaryCtxRelease_v2(ordinal_);
    }
    PrimaryContext(const PrimaryContext &) = delete;
    PrimaryContext &operator=(const PrimaryContext &) = delete;
    [[nodiscard]] bool current() const noexcept { return current_; }

  private:
    int ordinal_;
    bool current_ = false;
};

}  // namespace

std::string pools() {
    const RelaxedCapture relaxed;
    bool all_seen_complete = true;
    for (int ordinal = 0; ordinal < devices::count(); ++ordinal) {
        Device &device = devices::at(ordinal);
        shim::pools::look_again(device);
        if (device.ledger.of(Kind::pools) + device.ledger.of(Kind::graphs) == 0) continue;
        const PrimaryContext context(ordinal);
        if (context.current() && !captures::synchronise_current_context()) all_seen_complete = false;
        shim::pools::trim(device);
    }
    return all_seen_complete ? "" : "graph capture in progress: frees not known complete stay";
}

}  // namespace curb::shim::release::step
