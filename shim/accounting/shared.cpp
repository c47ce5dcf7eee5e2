#include "accounting/shared.hpp"

#include <atomic>

#include "accounting/allocations.hpp"
#include "accounting/blocks.hpp"
#include "accounting/reconcile.hpp"
#include "accounting/vmm.hpp"
#include "base/lifetime.hpp"
#include "base/table.hpp"
#include "job/exports.hpp"
#include "policy/values/granule.hpp"
#include "pools/pools.hpp"

namespace curb::shim::shared {
namespace {

struct Opened {
    CUcontext context = nullptr;  // that it ends with
    unsigned opens = 0;
};
struct Shared {
    Table<CUdeviceptr, Opened> opened;  // by address
    Table<CUevent, CUcontext> events;   // shared ones, and the contexts that they end with
    std::atomic<int> externals{0};      // imports of external memory
};
Shared &state() noexcept { return leaked<Shared>(); }

std::uint64_t name_of(const CUipcMemHandle &handle) noexcept {
    return job::hash_of({handle.reserved, sizeof handle.reserved});
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
    state().opened.make_and_change(address, [=](Opened &record) {
        record.context = context;
        ++record.opens;
        return true;
    });
    job::imported(address, name_of(handle));
} catch (...) {
    // Out of host memory: the driver's own refusal remains.
}

void closed(CUdeviceptr address) noexcept {
    end_import(address);
    state().opened.change(address, [](Opened &record) { return --record.opens != 0; });
}

void drop_context(CUcontext context) noexcept {
    state().opened.take_all([=](const Opened &record) { return record.context == context; },
                            [](CUdeviceptr address, const Opened &record) {
                                for (unsigned i = 0; i < record.opens; ++i) end_import(address);
                            });
    state().events.take_all([=](CUcontext owner) { return owner == context; }, [](CUevent, CUcontext) {});
}

void shares_event(CUevent event, CUcontext context) noexcept try { state().events.put(event, context); } catch (...) {
    // Out of host memory: the driver's own refusal remains.
}

void destroyed_event(CUevent event) noexcept { state().events.take(event); }

bool any_event() noexcept { return !state().events.empty(); }

void imported_external() noexcept { ++state().externals; }

void destroyed_external() noexcept { --state().externals; }

bool any_external() noexcept { return state().externals > 0; }

bool any() {
    vmm::forget_ended_openings();
    return !state().opened.empty() || allocations::any_exported() || vmm::any_shared() || vmm::any_lent() ||
           pools::any_shared();
}

}  // namespace curb::shim::shared
