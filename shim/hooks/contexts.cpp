// Contexts: what they cost is not told by any argument, so it is measured; what they own is freed with them.

#include "contexts.hpp"

#include <optional>

#include "admission.hpp"
#include "allocations.hpp"
#include "arrays.hpp"
#include "cache.hpp"
#include "captures.hpp"
#include "keep_errno.hpp"
#include "log.hpp"
#include "process.hpp"
#include "reports.hpp"
#include "trace.hpp"

namespace curb::shim {
namespace {

// What the first context takes, as long as it has not been measured: the figure of an H100 and an H200.
constexpr Bytes kContext = 518 * policy::MiB;

// What the first context of a device takes, for all of them. Where NVML does not see this process, that is what the
// device has less free afterwards: others may have allocated in that moment, and then it errs on the side of the cap.
class FirstContext {
  public:
    explicit FirstContext(Device &device) noexcept : device_(device) {
        const KeepErrno keep_errno;
        used_before_ = device_.meter.used_by_all();
        devices::reconcile(device_);
        overhead_before_ = device_.ledger.overhead();
    }
    // Charges it and returns how much that was.
    Bytes measure() const noexcept {
        const KeepErrno keep_errno;
        devices::reconcile(device_);
        Bytes cost = device_.ledger.overhead() - std::min(device_.ledger.overhead(), overhead_before_);
        const auto used = device_.meter.used_by_all();
        if (cost == 0 && !device_.meter.held_by_process())
            cost = used && used_before_ ? *used - std::min(*used, *used_before_) : assumed();
        const Bytes taken = device_.ledger.take_from_overhead(Kind::contexts, cost);
        trace::books(device_, Kind::overhead, -static_cast<std::int64_t>(taken));
        device_.ledger.charge(Kind::contexts, cost - taken);
        if (cost != 0) device_.context_cost.store(cost, std::memory_order_relaxed);
        devices::reconcile(device_);
        return cost;
    }

  private:
    // Without NVML nothing can be measured.
    Bytes assumed() const noexcept {
        log::write(policy::LogLevel::warning,
                   "NVML cannot be used: a context on " + device_.name() +
                       " is taken to cost 518 MiB, and the code of kernels to cost nothing. In a container, "
                       "NVIDIA_DRIVER_CAPABILITIES=compute,utility brings NVML in");
        return kContext;
    }

    Device &device_;
    std::optional<Bytes> used_before_;
    Bytes overhead_before_ = 0;
};

// A device without room for a context is waited for, as long as the policy says.
template <class Call>
CUresult patiently(Device &device, Call call) {
    room::Wait wait;
    CUresult result = CUDA_SUCCESS;
    do {
        result = call();
        if (result == CUDA_ERROR_OUT_OF_MEMORY && cache::give_up(device) != 0) result = call();
    } while (result == CUDA_ERROR_OUT_OF_MEMORY && admission::wait_for_device(device, Kind::contexts, kContext, wait));
    return result;
}

// `call` makes a context, `context` tells it afterwards, `undo` destroys it.
template <class Call, class Context, class Undo>
CUresult create(CUdevice ordinal, Call call, Context context, Undo undo) {
    Device *device = devices::find(ordinal);
    if (!device) return call();
    Bytes cost = 0;
    CUresult result = CUDA_SUCCESS;
    const Bytes known = device->context_cost.load(std::memory_order_relaxed);
    if (!admission::in_force(*device).limited() || process::snapshot().unusable) {
        result = patiently(*device, call);  // nothing is enforced, and NVML's start would cost 9 ms
    } else if (known != 0) {
        result = charged(*device, Kind::contexts, known, call, [&](Charge &charge) {
            charge.keep(known);
            cost = known;
            return CUDA_SUCCESS;
        });
    } else if (!admission::wait_beside_others(*device, Kind::contexts, kContext)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    } else {
        result = patiently(*device, [&] {
            const FirstContext first(*device);
            const CUresult made = call();
            if (made == CUDA_SUCCESS) cost = first.measure();
            return made;
        });
        if (result == CUDA_SUCCESS && admission::is_over_cap(*device)) {
            reports::context_refused(*device, cost);
            undo();
            device->ledger.give_back(Kind::contexts, cost);
            devices::reconcile(*device);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    if (result != CUDA_SUCCESS) return result;
    const CUcontext made = context();
    // One that the driver does not tell shows in the device's figure.
    const contexts::Made known_as = made ? contexts::made(made, *device, cost) : contexts::Made::known;
    if (known_as == contexts::Made::recorded) {
        devices::context_made(*device);
        trace::allocated(*device, Kind::contexts, reinterpret_cast<std::uint64_t>(made), cost, cost);
        return CUDA_SUCCESS;
    }
    if (known_as == contexts::Made::no_memory) undo();
    device->ledger.give_back(Kind::contexts, cost);
    return known_as == contexts::Made::no_memory ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

template <class Call>
CUresult create_own(CUcontext *context, CUdevice ordinal, Call call) {
    return create(
        ordinal, call, [&] { return *context; },
        [&] {
            driver().cuCtxDestroy_v2(*context);
            *context = nullptr;
        });
}

// What makes the primary context if it is not there.
template <class Call, class Context, class Undo>
CUresult create_primary(CUdevice ordinal, Call call, Context context, Undo undo) {
    const Device *device = devices::find(ordinal);
    if (!device || contexts::primary_is_active(*device).value_or(false)) return call();
    return create(
        ordinal, call, [&] { return context(*device); }, undo);
}

// The context and what was bound to it are gone.
void died(Device *device, CUcontext context) noexcept {
    captures::drop_context(context);
    cache::drop_context(context);
    allocations::drop_context(context);
    arrays::drop_context(context);
    if (!contexts::gone(context) || !device) return;
    if (devices::context_gone(*device)) {
        // What the driver had taken by itself went with the last one; where there is more, NVML says so.
        device->heap.store(0, std::memory_order_relaxed);
        trace::books(*device, Kind::overhead, device->ledger.set_overhead(0));
    }
    if (admission::in_force(*device).limited()) devices::reconcile(*device);
}

// Release and reset: whatever made the primary context inactive freed its memory.
template <class Call>
CUresult end_primary(CUdevice ordinal, Call call) {
    Device *device = devices::find(ordinal);
    const CUcontext context = device ? contexts::primary_of(*device) : nullptr;
    const contexts::Closing closing(context);
    const CUresult result = call();
    if (context && !contexts::primary_is_active(*device).value_or(true)) died(device, context);
    return result;
}

template <class Call>
CUresult destroy(CUcontext context, Call call) {
    Device *device = process::active() ? contexts::device_of(context) : nullptr;
    const contexts::Closing closing(process::active() ? context : nullptr);
    const CUresult result = call();
    if (result == CUDA_SUCCESS && process::active()) died(device, context);
    return result;
}

}  // namespace
}  // namespace curb::shim

using namespace curb::shim;

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice ordinal) {
    const CUresult result = create_primary(
        ordinal, [&] { return driver().cuDevicePrimaryCtxRetain(context, ordinal); },
        [&](const Device &) { return *context; },
        [&] {
            driver().cuDevicePrimaryCtxRelease_v2(ordinal);
            *context = nullptr;
        });
    const Device *device = result == CUDA_SUCCESS ? devices::find(ordinal) : nullptr;
    if (device) contexts::note_primary(*device, *context);
    return result;
}
CUresult cuDevicePrimaryCtxRelease(CUdevice ordinal) {
    return end_primary(ordinal, [&] { return driver().cuDevicePrimaryCtxRelease(ordinal); });
}
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice ordinal) {
    return end_primary(ordinal, [&] { return driver().cuDevicePrimaryCtxRelease_v2(ordinal); });
}
CUresult cuDevicePrimaryCtxReset(CUdevice ordinal) {
    return end_primary(ordinal, [&] { return driver().cuDevicePrimaryCtxReset(ordinal); });
}
CUresult cuDevicePrimaryCtxReset_v2(CUdevice ordinal) {
    return end_primary(ordinal, [&] { return driver().cuDevicePrimaryCtxReset_v2(ordinal); });
}
CUresult cuCtxCreate(CUcontext *context, unsigned flags, CUdevice ordinal) {
    return create_own(context, ordinal, [&] { return driver().cuCtxCreate(context, flags, ordinal); });
}
CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice ordinal) {
    return create_own(context, ordinal, [&] { return driver().cuCtxCreate_v2(context, flags, ordinal); });
}
CUresult cuCtxCreate_v3(CUcontext *context, CUexecAffinityParam *affinity, int count, unsigned flags,
                        CUdevice ordinal) {
    return create_own(context, ordinal,
                      [&] { return driver().cuCtxCreate_v3(context, affinity, count, flags, ordinal); });
}
CUresult cuCtxCreate_v4(CUcontext *context, CUctxCreateParams *parameters, unsigned flags, CUdevice ordinal) {
    return create_own(context, ordinal, [&] { return driver().cuCtxCreate_v4(context, parameters, flags, ordinal); });
}
CUresult cuCtxDestroy(CUcontext context) {
    return destroy(context, [&] { return driver().cuCtxDestroy(context); });
}
CUresult cuCtxDestroy_v2(CUcontext context) {
    return destroy(context, [&] { return driver().cuCtxDestroy_v2(context); });
}
// A context of the old kind ends with its last user, and only cuCtxAttach makes a second one.
CUresult cuCtxDetach(CUcontext context) {
    return destroy(context, [&] { return driver().cuCtxDetach(context); });
}
// A green context is a part of the multiprocessors of the primary context, which it makes if it is not there.
CUresult cuGreenCtxCreate(CUgreenCtx *context, CUdevResourceDesc resources, CUdevice ordinal, unsigned flags) {
    const CUresult result = create_primary(
        ordinal, [&] { return driver().cuGreenCtxCreate(context, resources, ordinal, flags); }, contexts::primary_of,
        [&] {
            driver().cuGreenCtxDestroy(*context);
            *context = nullptr;
        });
    if (Device *device = result == CUDA_SUCCESS ? devices::find(ordinal) : nullptr) {
        contexts::green_made(*context, *device);
        devices::look_again_soon(*device);
    }
    return result;
}
// It holds on to the primary context, which ends with its last user.
CUresult cuGreenCtxDestroy(CUgreenCtx context) {
    Device *device = process::active() ? contexts::green_gone(context) : nullptr;
    if (!device) return driver().cuGreenCtxDestroy(context);
    const CUresult result = end_primary(device->ordinal, [&] { return driver().cuGreenCtxDestroy(context); });
    if (result != CUDA_SUCCESS) contexts::green_made(context, *device);
    devices::look_again_soon(*device);
    return result;
}
CUresult cuCtxFromGreenCtx(CUcontext *context, CUgreenCtx green) {
    const CUresult result = driver().cuCtxFromGreenCtx(context, green);
    if (result == CUDA_SUCCESS && process::active()) contexts::note_green(*context);
    return result;
}
