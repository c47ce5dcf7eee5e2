// Step "cache": frees the kept blocks. Each free waits for its device, as any free does, and breaks no graph capture.

#include "cache.hpp"

#include "plan.hpp"

namespace curb::shim::release::step {

std::string cache() {
    bool any = false;
    for (int ordinal = 0; ordinal < devices::count(); ++ordinal) {
        Device &device = devices::at(ordinal);
        if (device.kept.load(std::memory_order_relaxed) == 0) continue;
        any = true;
        shim::cache::free_kept(device);
    }
    return any ? "" : "nothing cached";
}

}  // namespace curb::shim::release::step
