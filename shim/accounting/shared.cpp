#include "shared.hpp"

#include <mutex>
#include <unordered_map>

#include "allocations.hpp"
#include "lifetime.hpp"
#include "pools.hpp"
#include "vmm.hpp"

namespace curb::shim::shared {
namespace {

struct Registry {
    std::mutex mutex;
    std::unordered_map<CUdeviceptr, CUcontext> opened;  // address -> the context that it ends with
};
Registry &registry() noexcept { return leaked<Registry>(); }

bool any_opened() noexcept {
    const std::scoped_lock lock(registry().mutex);
    return !registry().opened.empty();
}

}  // namespace

void opened(CUdeviceptr address, CUcontext context) noexcept try {
    const std::scoped_lock lock(registry().mutex);
    registry().opened[address] = context;
} catch (...) {
    // Out of host memory: the driver's own refusal remains.
}

void closed(CUdeviceptr address) noexcept {
    const std::scoped_lock lock(registry().mutex);
    registry().opened.erase(address);
}

void drop_context(CUcontext context) noexcept {
    const std::scoped_lock lock(registry().mutex);
    std::erase_if(registry().opened, [=](const auto &one) { return one.second == context; });
}

bool any() noexcept { return any_opened() || allocations::any_exported() || vmm::any_shared() || pools::any_shared(); }

}  // namespace curb::shim::shared
