// Contexts. No argument gives a context's cost, so curb measures it. The driver frees a context's memory with it.

#include "contexts/contexts.hpp"

#include <optional>

#include "accounting/allocations.hpp"
#include "accounting/arrays.hpp"
#include "accounting/reconcile.hpp"
#include "accounting/shared.hpp"
#include "admission/admission.hpp"
#include "admission/reports.hpp"
#include "base/keep_errno.hpp"
#include "base/waiting.hpp"
#include "blocks/blocks.hpp"
#include "cache/cache.hpp"
#include "contexts/captures.hpp"
#include "hooks/kernels.hpp"
#include "hooks/noted.hpp"
#include "host/log.hpp"
#include "host/process_state.hpp"
#include "limits/in_force.hpp"
#include "limits/limits.hpp"
#include "pools/pools.hpp"
#include "trace/trace.hpp"

namespace curb::shim {
namespace {

using policy::kContext;

// The bytes that a green context takes until its primary context is destroyed (measured on an H200).
constexpr Bytes kGreen = 6 * policy::MiB;

// Leaves these bytes, which are charged, to the overhead, which a measurement corrects. Call it within an operation.
void leave_green(Device &device, Bytes bytes) noexcept {
    if (bytes == 0) return;
    device.ledger.leave_to_overhead(Kind::contexts, bytes);
    trace::allocated(device, Kind::overhead, 0, bytes, bytes);
}

// Measures the cost of the device's first context, which then counts for all. If NVML does not see this process, the
// cost is the drop in free memory: other processes may have allocated meanwhile, and then it is too high.
class ContextCost {
  public:
    explicit ContextCost(Device &device) noexcept : device_(device) {
        const KeepErrno keep_errno;
        used_before_ = device_.meter.used_by_all();
        reconcile(device_);
        overhead_before_ = device_.ledger.overhead();
    }
    // Charges the context and returns its cost. `green`: the bytes of the green context that the same call has made.
    Bytes measure(Bytes green) const noexcept {
        const KeepErrno keep_errno;
        reconcile(device_);
        Bytes all = device_.ledger.overhead() - std::min(device_.ledger.overhead(), overhead_before_);
        const auto used = device_.meter.used_by_all();
        if (all == 0 && !device_.meter.held_by_process())
            all = used && used_before_ ? *used - std::min(*used, *used_before_) : assumed() + green;
        green = std::min(green, all);
        {
            const Ledger::Operation operation(&device_.ledger);
            const Bytes taken = device_.ledger.take_from_overhead(Kind::contexts, all);
            trace::books(device_, Kind::overhead, -static_cast<std::int64_t>(taken));
            device_.ledger.charge(Kind::contexts, all - taken);
            leave_green(device_, green);
        }
        if (all != green) device_.contexts.cost = all - green;
        reconcile(device_);
        return all - green;
    }

  private:
    // Without NVML nothing can be measured.
    Bytes assumed() const noexcept {
        if (device_.shares_host_memory)
            log::write(policy::LogLevel::info,
                       "the GPU shares the host's memory, and NVML has no figures of it: a context on " +
                           device_.name() + " is taken to cost 518 MiB");
        else
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

// Lets one thread at a time create, measure and judge the first context of a device. Two at once would each measure
// both, and a thread that gets a primary context before it is judged would keep it. Does nothing once the cost is known
// and no thread judges.
class FirstContextTurn : NoCopy {
  public:
    explicit FirstContextTurn(Device &device) noexcept : device_(device) {
        const auto is_unknown = [&] { return limits::counts_all(device) && device.contexts.cost == 0; };
        // In this order: the cost is known a moment before the context is judged.
        const auto is_open = [&] { return is_unknown() || device.contexts.first != 0; };
        if (!is_open()) return;
        const KeepErrno keep_errno;
        // Load NVML before taking the turn: a constructor that the loader runs meanwhile may create a context.
        device.meter.held_by_process();
        // The driver may need the loader's lock too, or call the program back on this thread: go on after 10 s.
        constexpr std::uint64_t kEachMs = 100;
        constexpr int kMost = 100;
        for (int waits = 0; waits < kMost && is_open();) {
            std::uint32_t free = 0;
            taken_ = is_unknown() && device.contexts.first.compare_exchange_strong(free, 1);
            if (taken_) return;
            if (!futex_wait(device.contexts.first, 1, kEachMs)) ++waits;
        }
    }
    ~FirstContextTurn() {
        if (!taken_) return;
        device_.contexts.first = 0;
        futex_wake(device_.contexts.first);
    }

  private:
    Device &device_;
    bool taken_ = false;
};

// Calls the driver. If the device is full, frees kept blocks, then waits as long as the policy allows.
template <class Call>
CUresult call_or_wait(Device &device, Call call) {
    wait_queue::Wait wait;
    const CUresult result = admission::until_served(device, Kind::contexts, kContext, wait, [&] {
        const CUresult first = call();
        const bool again = first == CUDA_ERROR_OUT_OF_MEMORY && cache::free_kept(device) != 0;
        return admission::unless_full(again ? call() : first);
    });
    if (result == CUDA_SUCCESS) admission::granted(device, Kind::contexts, kContext, wait);
    return result;
}

void forget_heap(Device &device) noexcept {
    if (device.contexts.heap.exchange(0) != 0) trace::heap(device, 0);
}
void forget_overhead(Device &device) noexcept { trace::books(device, Kind::overhead, device.ledger.set_overhead(0)); }

// Credits a destroyed context and everything in it. Returns the device to reconcile, which must not happen within an
// operation; null if there is nothing to measure.
Device *credit_context(Device *device, CUcontext context) noexcept {
#define CURB_ENDS_WITH_CONTEXT(forget, what) forget;
#include "hooks/context_end.def"
    if (!contexts::remove(context) || !device) return nullptr;
    if (devices::context_gone(*device)) {
#define CURB_ENDS_WITH_LAST_CONTEXT(forget, what) forget;
#include "hooks/context_end.def"
    }
    return limits::counts_all(*device) ? device : nullptr;
}

// Guards a driver call that may destroy a context. It is one operation of the ledger: otherwise a measurement that
// began before the call would count the context's memory as overhead after it. Reconciles when the operation has ended.
class ContextEnd : NoCopy {
  public:
    ContextEnd(Device *device, CUcontext context) noexcept : device_(device), context_(context), guard_(context) {
        if (device_) device_->ledger.begin();
    }
    ~ContextEnd() {
        if (device_) device_->ledger.end();
        if (measured_) reconcile(*measured_);
    }
    // Credits the destroyed context, unless a thread that got the same handle again has already done so.
    void credit() noexcept {
        const bool is_recorded = guard_.id() != 0;
        if (!is_recorded || contexts::claim_end(context_, guard_.id())) measured_ = credit_context(device_, context_);
    }

  private:
    Device *const device_;
    const CUcontext context_;
    const contexts::DestroyGuard guard_;
    Device *measured_ = nullptr;
};

// Records a new context. The driver may reuse a handle before the thread that destroyed the old context has credited
// it.
contexts::Added record(Device &device, const contexts::New &made) noexcept {
    for (;;) {
        const contexts::Added recorded = contexts::add(device, made);
        if (recorded != contexts::Added::ended) return recorded;
        if (!contexts::claim_end(made.context)) continue;
        if (Device *measured = credit_context(&device, made.context)) reconcile(*measured);
    }
}

// Reserves room under the job's cap for a context of unknown cost, until the context is charged.
class HeldInJob : NoCopy {
  public:
    HeldInJob(Device &device, Bytes green) noexcept : device_(device) {
        const auto cap = limits::in_force(device)->terms.job_cap;
        if (!cap) return;
        const Bytes known = device.ledger.share.context_cost();
        const Bytes bytes = (known != 0 ? known : kContext) + green + limits::kept_for_driver(device, *cap);
        refused_ = !admission::hold_in_job(device, bytes);
        if (!refused_) bytes_ = bytes;
    }
    ~HeldInJob() { device_.ledger.share.add(-bytes_); }
    [[nodiscard]] bool refused() const noexcept { return refused_; }

  private:
    Device &device_;
    Bytes bytes_ = 0;
    bool refused_ = false;
};

// The result of a call that creates a context.
struct Created {
    CUresult result = CUDA_SUCCESS;
    Bytes cost = 0;            // charged for the context
    bool exceeds_cap = false;  // known only now, because the cost was unknown
};

// Creates a context of known cost, as any other request. `green`: the bytes of a green context that `call` makes too.
template <class Call>
Created create_at_cost(Device &device, Bytes cost, Bytes green, Call call) {
    const Bytes all = cost + green;
    const Request request(device, Kind::contexts, all, all, caller_match::Way::none, Reuse::none());
    const CUresult result = charged(request, call, [&](Charge &charge) {
        charge.keep(all);
        leave_green(device, green);
        return CUDA_SUCCESS;
    });
    return {result, cost};
}

// Creates a device's first context and measures its cost.
template <class Call>
Created create_first(Device &device, Bytes green, Call call) {
    if (!admission::wait_beside_others(device, Kind::contexts, kContext)) return {CUDA_ERROR_OUT_OF_MEMORY};
    const HeldInJob held(device, green);
    if (held.refused()) return {CUDA_ERROR_OUT_OF_MEMORY};
    Created created;
    created.result = call_or_wait(device, [&] {
        const ContextCost first(device);
        const CUresult result = [&] {
            const Ledger::Operation operation(&device.ledger);
            return call();
        }();
        if (result != CUDA_SUCCESS) return result;
        created.cost = first.measure(green);
        // What the device has lost may be another process's: the job's others would never get rid of it.
        if (device.has_nvml) device.ledger.share.note_context_cost(created.cost);
        return result;
    });
    created.exceeds_cap = created.result == CUDA_SUCCESS && limits::exceeds_cap(device);
    return created;
}

// Records a context that the driver has created. Destroys it again by `undo` if it exceeds the cap or if there is no
// host memory for the record. If `undo` returns false, because another thread uses the context too or the driver
// failed, the context stays and counts.
template <class Undo>
CUresult keep_or_undo(Device &device, const contexts::New &made, bool exceeds_cap, Undo undo) {
    const auto destroy_again = [&] {
        const Ledger::Operation operation(&device.ledger);
        if (!undo()) return false;
        device.ledger.credit(Kind::contexts, made.cost);
        return true;
    };
    if (exceeds_cap) {
        reports::context_refused(device, made.cost);
        if (destroy_again()) {
            reconcile(device);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    const CUresult result = exceeds_cap ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
    // Without a handle there is no record, and NVML's figure shows the context.
    const contexts::Added recorded = made.context ? record(device, made) : contexts::Added::known;
    if (recorded == contexts::Added::recorded) {
        devices::context_made(device);
        blocks::has_context(device);
        trace::allocated(device, Kind::contexts, reinterpret_cast<std::uint64_t>(made.context), made.cost, made.cost);
        return result;
    }
    const bool no_memory = recorded == contexts::Added::no_memory;
    if (no_memory && !exceeds_cap && destroy_again()) return CUDA_ERROR_OUT_OF_MEMORY;
    device.ledger.credit(Kind::contexts, made.cost);
    return no_memory ? CUDA_ERROR_OUT_OF_MEMORY : result;
}

// `call` creates a context, `context()` returns it, `undo()` destroys it again. `made`: the fields that are known
// before the call.
template <class Call, class Context, class Undo>
CUresult create(Device &device, contexts::New made, Bytes green, Call call, Context context, Undo undo) {
    Created created;
    if (!limits::counts_all(device) || in_force::snapshot()->unusable)
        created.result = call_or_wait(device, call);  // no limit applies, and starting NVML would cost 9 ms
    else if (const Bytes cost = device.contexts.cost; cost != 0)
        created = create_at_cost(device, cost, green, call);
    else
        created = create_first(device, green, call);
    if (created.result != CUDA_SUCCESS) return created.result;
    made.context = context();
    made.cost = created.cost;
    return keep_or_undo(device, made, created.exceeds_cap, undo);
}

template <class Call>
CUresult create_own(CUcontext *context, CUdevice ordinal, Call call) {
    Device *device = devices::find(ordinal);
    if (!device) return call();
    const FirstContextTurn turn(*device);
    return create(
        *device, {}, 0, call, [&] { return *context; },
        [&] {
            const bool gone = driver().cuCtxDestroy_v2(*context) == CUDA_SUCCESS;
            *context = nullptr;
            return gone;
        });
}

// Calls `call`, which creates the primary context and, if `green`, a green context in it. If the primary context
// exists, calls `otherwise(device)` instead. `undo` drops what the program would have got.
template <class Call, class Otherwise, class Context, class Undo>
CUresult create_primary(CUdevice ordinal, Bytes green, Call call, Otherwise otherwise, Context context, Undo undo) {
    Device *device = devices::find(ordinal);
    if (!device) return call();
    {
        const FirstContextTurn turn(*device);
        const contexts::New made{.is_primary = true, .older = contexts::newest()};
        if (!contexts::primary_is_active(*device).value_or(false))
            return create(
                *device, made, green, call, [&] { return context(*device); },
                [&] {
                    undo();
                    return !contexts::primary_is_active(*device).value_or(false);
                });
    }
    return otherwise(*device);
}

// `call` creates a green context of an existing primary context. Its cost counts as overhead, which a measurement
// corrects.
template <class Call>
CUresult create_green(Device &device, Call call) {
    if (in_force::snapshot()->unusable) return call();
    const Request request(device, Kind::contexts, kGreen, kGreen, caller_match::Way::none, Reuse::none());
    return charged(request, call, [&](Charge &charge) {
        charge.keep(kGreen);
        leave_green(device, kGreen);
        return CUDA_SUCCESS;
    });
}

// The effect of a successful call on the primary context. perhaps: ask the driver whether it still exists.
enum class Ends { surely, perhaps };

template <class Call>
CUresult end_primary(CUdevice ordinal, Ends ends, Call call) {
    Device *device = devices::find(ordinal);
    CUcontext context = device ? contexts::recorded_primary(*device) : nullptr;
    if (device && !context) context = contexts::primary_of(*device);
    ContextEnd end(device, context);
    const CUresult result = call();
    if (context &&
        ((ends == Ends::surely && result == CUDA_SUCCESS) || !contexts::primary_is_active(*device).value_or(true)))
        end.credit();
    return result;
}

// `call` destroys a context or, if `detaches`, drops one of its references.
template <class Call>
CUresult destroy(CUcontext context, bool detaches, Call call) {
    if (!process::active()) return call();
    ContextEnd end(contexts::device_of(context), context);
    const CUresult result = call();
    if (result == CUDA_SUCCESS && (!detaches || contexts::detached(context))) end.credit();
    return result;
}

}  // namespace
}  // namespace curb::shim

using namespace curb::shim;

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice ordinal) {
    const auto call = to_driver<&Driver::cuDevicePrimaryCtxRetain>(context, ordinal);
    const CUresult result = create_primary(
        ordinal, 0, call, [&](const Device &) { return call(); }, [&](const Device &) { return *context; },
        [&] {
            driver().cuDevicePrimaryCtxRelease_v2(ordinal);
            *context = nullptr;
        });
    const Device *device = result == CUDA_SUCCESS ? devices::find(ordinal) : nullptr;
    if (device) contexts::note_primary(*device, *context);
    return result;
}
CUresult cuDevicePrimaryCtxRelease(CUdevice ordinal) {
    return end_primary(ordinal, Ends::perhaps, to_driver<&Driver::cuDevicePrimaryCtxRelease>(ordinal));
}
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice ordinal) {
    return end_primary(ordinal, Ends::perhaps, to_driver<&Driver::cuDevicePrimaryCtxRelease_v2>(ordinal));
}
CUresult cuDevicePrimaryCtxReset(CUdevice ordinal) {
    return end_primary(ordinal, Ends::surely, to_driver<&Driver::cuDevicePrimaryCtxReset>(ordinal));
}
CUresult cuDevicePrimaryCtxReset_v2(CUdevice ordinal) {
    return end_primary(ordinal, Ends::surely, to_driver<&Driver::cuDevicePrimaryCtxReset_v2>(ordinal));
}
CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice ordinal) {
    return create_own(context, ordinal, to_driver<&Driver::cuCtxCreate_v2>(context, flags, ordinal));
}
CUresult cuCtxCreate_v3(CUcontext *context, CUexecAffinityParam *affinity, int count, unsigned flags,
                        CUdevice ordinal) {
    return create_own(context, ordinal, to_driver<&Driver::cuCtxCreate_v3>(context, affinity, count, flags, ordinal));
}
CUresult cuCtxCreate_v4(CUcontext *context, CUctxCreateParams *parameters, unsigned flags, CUdevice ordinal) {
    return create_own(context, ordinal, to_driver<&Driver::cuCtxCreate_v4>(context, parameters, flags, ordinal));
}
CUresult cuCtxDestroy(CUcontext context) { return destroy(context, false, to_driver<&Driver::cuCtxDestroy>(context)); }
CUresult cuCtxDestroy_v2(CUcontext context) {
    return destroy(context, false, to_driver<&Driver::cuCtxDestroy_v2>(context));
}
// cuCtxDetach destroys a context with its last reference, and only cuCtxAttach adds one, to the current context.
// Counted before the driver's call, so that no other thread takes its reference for the last.
CUresult cuCtxAttach(CUcontext *context, unsigned flags) {
    const CUcontext current = process::active() ? current_context() : nullptr;
    if (current) contexts::attached(current);
    const CUresult result = driver().cuCtxAttach(context, flags);
    if (current && result != CUDA_SUCCESS) contexts::detached(current);
    return result;
}
CUresult cuCtxDetach(CUcontext context) { return destroy(context, true, to_driver<&Driver::cuCtxDetach>(context)); }
// A green context uses some multiprocessors of the primary context, which the call creates if it does not exist.
CUresult cuGreenCtxCreate(CUgreenCtx *context, CUdevResourceDesc resources, CUdevice ordinal, unsigned flags) {
    const auto call = to_driver<&Driver::cuGreenCtxCreate>(context, resources, ordinal, flags);
    const CUresult result = create_primary(
        ordinal, kGreen, call, [&](Device &device) { return create_green(device, call); }, contexts::primary_of,
        [&] {
            driver().cuGreenCtxDestroy(*context);
            *context = nullptr;
        });
    if (Device *device = result == CUDA_SUCCESS ? devices::find(ordinal) : nullptr) {
        contexts::green_made(*context, *device);
        driver_may_have_taken(*device);
    }
    return result;
}
// A green context holds a reference to the primary context and may be the last to do so.
CUresult cuGreenCtxDestroy(CUgreenCtx context) {
    const auto call = to_driver<&Driver::cuGreenCtxDestroy>(context);
    if (!process::active()) return call();
    contexts::Greens::Removal green = contexts::remove_green(context);
    Device *device = green ? green->device : nullptr;
    const CUresult result = device ? end_primary(device->ordinal, Ends::perhaps, call) : call();
    if (result == CUDA_SUCCESS && green) green.commit();
    if (device) devices::measure_returned_soon(*device);
    return result;
}
CUresult cuCtxFromGreenCtx(CUcontext *context, CUgreenCtx green) {
    return noted(driver().cuCtxFromGreenCtx(context, green), [=] { contexts::note_green(green, *context); });
}
