// Step "pools": memory that stream-ordered pools, and the graphs of a device, reserve but do not use.
//
// A trim gives back what the host has seen complete. What it leaves may be used, or freed by work whose end nobody has
// looked for: then the contexts of the device are waited for, here and not in the program's threads, and it is trimmed
// once more. Not during a graph capture, which waiting for a context would break.

#include "pools.hpp"

#include "captures.hpp"
#include "contexts.hpp"
#include "plan.hpp"

namespace curb::shim::release::step {
namespace {

// Waits for the work of the device's contexts. False: a capture is in progress.
bool finish_work(const Device &device) noexcept {
    const auto all = contexts::on(device);
    if (!all) return true;  // one is about to go, and waits for its work itself
    for (const contexts::Known &one : *all) {
        const contexts::Pin visit(one.context);
        if (visit.id() != one.id) continue;
        const contexts::Current context(one.context);
        auto result = context ? captures::synchronise_current_context() : CUDA_SUCCESS;
        // With an error of earlier work it may not have waited for what came after.
        if (result && *result != CUDA_SUCCESS) result = captures::synchronise_current_context();
        if (!result) return false;
    }
    return true;
}

}  // namespace

std::string pools() {
    const RelaxedCapture relaxed;
    bool any = false, finished = true;
    for (int ordinal = 0; ordinal < devices::count(); ++ordinal) {
        Device &device = devices::at(ordinal);
        shim::pools::reconcile(device);
        if (shim::pools::charged(device) == 0) continue;
        any = true;
        shim::pools::trim(device);
        if (shim::pools::charged(device) == 0) continue;
        finished = finish_work(device) && finished;
        shim::pools::trim(device);
    }
    return !finished ? kCapture : any ? "" : "nothing reserved";
}

}  // namespace curb::shim::release::step
