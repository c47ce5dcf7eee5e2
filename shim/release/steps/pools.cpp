// Step "pools": frees the memory that stream-ordered pools and graphs reserve but do not use.
//
// A trim returns only memory whose work the host has seen complete. If something is left, the step waits for the work
// of the device's contexts, on the worker and not in the program's threads, and trims once more. Not during a graph
// capture, which waiting for a context would break.

#include "pools/pools.hpp"

#include "contexts/captures.hpp"
#include "contexts/contexts.hpp"
#include "release/release.hpp"

namespace curb::shim::release::step {
namespace {

// Waits for the work of the device's contexts. False if a capture is in progress.
bool finish_work(const Device &device) noexcept {
    const auto all = contexts::on(device);
    if (!all) return true;  // a context is being destroyed, which waits for its work
    for (const contexts::Known &one : *all) {
        const contexts::Pin pin(one.context);
        if (pin.id() != one.id) continue;
        const contexts::Current context(one.context);
        auto result = context ? captures::synchronise_current_context() : CUDA_SUCCESS;
        // If it returned an error of earlier work, it may not have waited for later work.
        if (result && *result != CUDA_SUCCESS) result = captures::synchronise_current_context();
        if (!result) return false;
    }
    return true;
}

}  // namespace

Outcome pools() {
    const RelaxedCapture relaxed;
    bool any = false, finished = true;
    for (Device &device : devices::all()) {
        shim::pools::reconcile(device);
        if (shim::pools::charged(device) == 0) continue;
        any = true;
        shim::pools::trim(device);
        if (shim::pools::charged(device) == 0) continue;
        finished = finish_work(device) && finished;
        shim::pools::trim(device);
    }
    if (!any) return untried("nothing reserved");
    return {finished ? "" : kCapture};
}

}  // namespace curb::shim::release::step
