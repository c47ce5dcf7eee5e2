// Step "cache": frees the kept blocks. Each free waits for its device, as any free does, and breaks no graph capture.

#include "cache/cache.hpp"

#include "release/release.hpp"

namespace curb::shim::release::step {

Outcome cache() {
    bool any = false;
    for (Device &device : devices::all()) {
        if (device.kept.blocks == 0) continue;
        any = true;
        shim::cache::free_kept(device);
    }
    return any ? Outcome() : untried("nothing cached");
}

}  // namespace curb::shim::release::step
