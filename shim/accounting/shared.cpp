#include "accounting/shared.hpp"

#include <atomic>
#include <mutex>
#include <unordered_map>

#include "accounting/allocations.hpp"
#include "accounting/reconcile.hpp"
#include "accounting/vmm.hpp"
#include "base/lifetime.hpp"
#include "job/exports.hpp"
#include "policy/values/granule.hpp"
#include "pools/pools.hpp"

namespace curb::shim::shared {
namespace {

struct Registry {
    std::mutex mutex;
    struct Opened {
        CUcontext context = nullptr;  // that it ends with
        unsigned opens = 0;
    };
    std::unordered_map<CUdeviceptr, Opened> opened;  // by address
    std::unordered_map<CUevent, CUcontext> events;   // shared ones, and the contexts that they end with
};
constinit std::atomic<std::size_t> events{0};  // in the registry
constinit std::atomic<int> externals{0};       // imports of external memory
Registry &registry() noexcept { return leaked<Registry>(); }

std::uint64_t name_of(const CUipcMemHandle &handle) noexcept {
    return job::hash_of({handle.reserved, sizeof handle.reserved});
}

bool any_opened() noexcept {
    const std::scoped_lock lock(registry().mutex);
    return !registry().opened.empty();
}

}  // namespace

void exported(CUdeviceptr address, const CUipcMemHandle &handle) noexcept {
    const auto block = allocations::find(address);
    if (!block) return;
    // Small blocks share a granule; then it counts for each that is exported.
    job::exported(address, name_of(handle), block->device->ledger.share.row(),
                  policy::round_up(block->bytes, policy::kGranule));
}

void opened(CUdeviceptr address, const CUipcMemHandle &handle, CUcontext context) noexcept try {
    {
        const std::scoped_lock lock(registry().mutex);
        Registry::Opened &record = registry().opened[address];
        record.context = context;
        ++record.opens;
    }
    job::imported(address, name_of(handle));
} catch (...) {
    // Out of host memory: the driver's own refusal remains.
}

void closed(CUdeviceptr address) noexcept {
    end_import(address);
    const std::scoped_lock lock(registry().mutex);
    const auto found = registry().opened.find(address);
    if (found != registry().opened.end() && --found->second.opens == 0) registry().opened.erase(found);
}

void drop_context(CUcontext context) noexcept {
    const std::scoped_lock lock(registry().mutex);
    std::erase_if(registry().opened, [=](const auto &one) {
        if (one.second.context != context) return false;
        for (unsigned i = 0; i < one.second.opens; ++i) end_import(one.first);
        return true;
    });
    std::erase_if(registry().events, [=](const auto &one) { return one.second == context; });
    events.store(registry().events.size(), std::memory_order_relaxed);
}

void shares_event(CUevent event, CUcontext context) noexcept try {
    const std::scoped_lock lock(registry().mutex);
    registry().events[event] = context;
    events.store(registry().events.size(), std::memory_order_relaxed);
} catch (...) {
    // Out of host memory: the driver's own refusal remains.
}

void destroyed_event(CUevent event) noexcept {
    if (!any_event()) return;
    const std::scoped_lock lock(registry().mutex);
    registry().events.erase(event);
    events.store(registry().events.size(), std::memory_order_relaxed);
}

bool any_event() noexcept { return events.load(std::memory_order_relaxed) != 0; }

void imported_external() noexcept { externals.fetch_add(1, std::memory_order_relaxed); }

void destroyed_external() noexcept { externals.fetch_sub(1, std::memory_order_relaxed); }

bool any_external() noexcept { return externals.load(std::memory_order_relaxed) > 0; }

bool any() noexcept { return any_opened() || allocations::any_exported() || vmm::any_shared() || pools::any_shared(); }

}  // namespace curb::shim::shared
