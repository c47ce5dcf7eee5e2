#include "contexts.hpp"

#include <algorithm>

#include "arrays.hpp"
#include "driver.hpp"
#include "faults.hpp"
#include "modules.hpp"
#include "running.hpp"

namespace curb::sim {

Context::Context(CUcontext its_handle, int its_device, unsigned its_flags)
    : handle(its_handle),
      device(its_device),
      flags(its_flags),
      plain(its_device, Use::plain),
      arrays(its_device, Use::arrays),
      legacy_stream(make_stream(its_handle, its_device, CU_STREAM_DEFAULT, 0)) {
    legacy_stream->legacy = true;
}

Context::~Context() {
    Driver &all = driver();
    // Stream-ordered and VMM allocations outlive contexts (cuda.h, cuCtxDestroy); plain ones do not.
    std::erase_if(all.allocations, [&](const auto &entry) {
        const Allocation &allocation = entry.second;
        if (allocation.context != handle) return false;
        if (allocation.kind == Allocation::Kind::managed) free_managed(allocation);
        return allocation.kind == Allocation::Kind::plain || allocation.kind == Allocation::Kind::managed;
    });
    std::vector<Capture *> captures;
    for (const auto &capture : all.captures)
        if (capture->context == handle) captures.push_back(capture.get());
    for (Capture *capture : captures) abandon(*capture);
    std::erase_if(all.late_frees, [&](const LateFree &late) { return late.context == handle; });
    forget_arrays_of(handle);
    unload_modules_of(handle);
    all.streams.remove_if([&](const Stream &stream) { return stream.context == handle; });
    all.events.remove_if([&](const Event &event) { return event.context == handle; });
    credit(device, Use::context, overhead + stack_bytes(stack_limit) + heap_taken);
    credit(device, Use::modules, code_kept);
    // Its end waits for its work, which pools notice.
    all_seen_complete(device);
    release_above_thresholds(device);
}

CUresult Context::set_stack(uint64_t limit) {
    limit = round_up(limit, kStackUnit);
    if (limit > kAbsurd / kStacks) return CUDA_ERROR_OUT_OF_MEMORY;
    if (limit > stack_limit) {
        if (const CUresult error = charge(device, Use::context, stack_bytes(limit) - stack_bytes(stack_limit)))
            return error;
    } else {
        credit(device, Use::context, stack_bytes(stack_limit) - stack_bytes(limit));
    }
    stack_limit = limit;
    return CUDA_SUCCESS;
}

CUresult Context::take_heap() {
    if (heap_taken) return CUDA_SUCCESS;
    const uint64_t size = round_up(heap_limit, kGranule) + kGranule;
    if (const CUresult error = charge(device, Use::context, size)) return error;
    heap_taken = size;
    return CUDA_SUCCESS;
}

namespace {

CUresult make_context(CUcontext handle, int device, unsigned flags, Context **made) {
    if (const CUresult error = charge(device, Use::context, kContextBytes)) return error;
    this_call_is_about(kGiB);
    *made = driver().contexts.add(std::make_unique<Context>(handle, device, flags));
    return CUDA_SUCCESS;
}

CUresult push(CUcontext context) {
    Thread &thread = this_thread();
    if (thread.depth == Thread::kDeepest) return CUDA_ERROR_INVALID_VALUE;
    thread.stack[thread.depth++] = context;
    return CUDA_SUCCESS;
}

CUresult create(CUcontext *context, unsigned flags, CUdevice device) {
    if (!context) return CUDA_ERROR_INVALID_VALUE;
    Device *found = nullptr;
    if (const CUresult error = find_device(device, &found)) return error;
    if (this_thread().depth == Thread::kDeepest) return CUDA_ERROR_INVALID_VALUE;
    Context *made = nullptr;
    const auto handle = make_handle<CUcontext>();
    if (const CUresult error = make_context(handle, device, flags, &made)) {
        free_handle(handle);
        return error;
    }
    *context = handle;
    return push(handle);
}

bool is_primary(CUcontext context) {
    const auto &devices = driver().devices;
    return std::any_of(devices.begin(), devices.end(), [=](const Device &device) { return device.primary == context; });
}

CUresult destroy(CUcontext context) {
    if (!context) return CUDA_ERROR_INVALID_VALUE;
    if (is_primary(context) || !driver().contexts.find(context)) return CUDA_ERROR_INVALID_CONTEXT;
    wait_for_work_of(context);
    if (!driver().contexts.find(context)) return CUDA_ERROR_INVALID_CONTEXT;
    // From the calling thread's stack too if it is on top there; elsewhere it stays, and calls in it say
    // CUDA_ERROR_CONTEXT_IS_DESTROYED (cuda.h, cuCtxDestroy).
    Thread &thread = this_thread();
    if (thread.depth && thread.stack[thread.depth - 1] == context) --thread.depth;
    driver().contexts.remove(context);
    free_handle(context);
    return CUDA_SUCCESS;
}

CUresult release(CUdevice device) {
    Device *found = nullptr;
    if (const CUresult error = find_device(device, &found)) return error;
    return release_primary(*found);
}

CUresult reset_primary(CUdevice device) {
    Device *found = nullptr;
    if (const CUresult error = find_device(device, &found)) return error;
    wait_for_work_of(found->primary);
    found->primary_references = 0;
    driver().contexts.remove(found->primary);
    note_reset();
    return CUDA_SUCCESS;
}

}  // namespace

CUresult retain_primary(Device &device, Context **context) {
    if (!device.primary_references)
        if (const CUresult error = make_context(device.primary, device.index, device.primary_flags, context))
            return error;
    ++device.primary_references;
    *context = driver().contexts.find(device.primary);
    return CUDA_SUCCESS;
}

CUresult release_primary(Device &device) {
    if (device.primary_references == 1) wait_for_work_of(device.primary);
    if (!device.primary_references) return CUDA_ERROR_INVALID_CONTEXT;
    if (--device.primary_references == 0) driver().contexts.remove(device.primary);
    return CUDA_SUCCESS;
}

SIM_CU(cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device), (context, device)) {
    Device *found = nullptr;
    if (const CUresult error = find_device(device, &found)) return error;
    if (!context) return CUDA_ERROR_INVALID_VALUE;
    Context *primary = nullptr;
    if (const CUresult error = retain_primary(*found, &primary)) return error;
    *context = primary->handle;
    return CUDA_SUCCESS;
}

SIM_CU(cuDevicePrimaryCtxRelease, (CUdevice device), (device)) { return release(device); }
SIM_CU(cuDevicePrimaryCtxRelease_v2, (CUdevice device), (device)) { return release(device); }
SIM_CU(cuDevicePrimaryCtxReset, (CUdevice device), (device)) { return reset_primary(device); }
SIM_CU(cuDevicePrimaryCtxReset_v2, (CUdevice device), (device)) { return reset_primary(device); }

SIM_CU(cuDevicePrimaryCtxSetFlags_v2, (CUdevice device, unsigned flags), (device, flags)) {
    Device *found = nullptr;
    if (const CUresult error = find_device(device, &found)) return error;
    found->primary_flags = flags;
    return CUDA_SUCCESS;
}

SIM_CU(cuDevicePrimaryCtxGetState, (CUdevice device, unsigned *flags, int *active), (device, flags, active)) {
    Device *found = nullptr;
    if (const CUresult error = find_device(device, &found)) return error;
    if (!flags || !active) return CUDA_ERROR_INVALID_VALUE;
    *flags = found->primary_flags;
    *active = found->primary_references > 0;
    return CUDA_SUCCESS;
}

// The first version is for programs of 32 bits (measured on an H200).
SIM_CU(cuCtxCreate,
       ([[maybe_unused]] CUcontext * context, [[maybe_unused]] unsigned flags, [[maybe_unused]] CUdevice device),
       (context, flags, device)) {
    return CUDA_ERROR_OUT_OF_MEMORY;
}
SIM_CU(cuCtxCreate_v2, (CUcontext * context, unsigned flags, CUdevice device), (context, flags, device)) {
    return create(context, flags, device);
}
SIM_CU(cuCtxCreate_v3,
       (CUcontext * context, [[maybe_unused]] CUexecAffinityParam *affinity, [[maybe_unused]] int affinities,
        unsigned flags, CUdevice device),
       (context, affinity, affinities, flags, device)) {
    return create(context, flags, device);
}
SIM_CU(cuCtxCreate_v4,
       (CUcontext * context, [[maybe_unused]] CUctxCreateParams *parameters, unsigned flags, CUdevice device),
       (context, parameters, flags, device)) {
    return create(context, flags, device);
}

SIM_CU(cuCtxDestroy, (CUcontext context), (context)) { return destroy(context); }
SIM_CU(cuCtxDestroy_v2, (CUcontext context), (context)) { return destroy(context); }

SIM_CU(cuCtxAttach, (CUcontext * context, unsigned flags), (context, flags)) {
    if (!context || flags) return CUDA_ERROR_INVALID_VALUE;
    Context *current = nullptr;
    if (const CUresult error = current_context(&current)) return error;
    ++current->attached;
    *context = current->handle;
    return CUDA_SUCCESS;
}

SIM_CU(cuCtxDetach, (CUcontext context), (context)) {
    Context *found = driver().contexts.find(context);
    if (!found) return CUDA_ERROR_INVALID_CONTEXT;
    return --found->attached ? CUDA_SUCCESS : destroy(context);
}

SIM_CU(cuCtxPushCurrent_v2, (CUcontext context), (context)) {
    if (!context) return CUDA_ERROR_INVALID_VALUE;
    if (!find_context(context)) return CUDA_ERROR_INVALID_CONTEXT;
    return push(context);
}

SIM_CU(cuCtxPopCurrent_v2, (CUcontext * context), (context)) {
    Thread &thread = this_thread();
    if (!thread.depth) return CUDA_ERROR_INVALID_CONTEXT;
    --thread.depth;
    if (context) *context = thread.stack[thread.depth];
    return CUDA_SUCCESS;
}

// Replaces the top of the stack; null pops it.
SIM_CU(cuCtxSetCurrent, (CUcontext context), (context)) {
    Thread &thread = this_thread();
    if (context && !find_context(context)) return CUDA_ERROR_INVALID_CONTEXT;
    if (thread.depth) --thread.depth;
    return context ? push(context) : CUDA_SUCCESS;
}

SIM_CU(cuCtxGetCurrent, (CUcontext * context), (context)) {
    if (!context) return CUDA_ERROR_INVALID_VALUE;
    const Thread &thread = this_thread();
    *context = thread.depth ? thread.stack[thread.depth - 1] : nullptr;
    return CUDA_SUCCESS;
}

// The CUDA 13 forms name the context; null means the current one.
static CUresult context_or_current(CUcontext handle, Context **context) {
    if (!handle) return current_context(context);
    *context = find_context(handle);
    return *context ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

template <class Out, class Member>
static CUresult tell(CUcontext handle, Out *out, Member Context::*member) {
    Context *context = nullptr;
    if (const CUresult error = context_or_current(handle, &context)) return error;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    *out = context->*member;
    return CUDA_SUCCESS;
}

SIM_CU(cuCtxGetDevice, (CUdevice * device), (device)) { return tell(nullptr, device, &Context::device); }
SIM_CU(cuCtxGetDevice_v2, (CUdevice * device, CUcontext handle), (device, handle)) {
    return tell(handle, device, &Context::device);
}
SIM_CU(cuCtxGetFlags, (unsigned *flags), (flags)) { return tell(nullptr, flags, &Context::flags); }

static CUresult synchronize(const Context &context) {
    const CUcontext handle = context.handle;
    const int device = context.device;
    if (const CUresult error = refuse_synchronising_captured(handle)) return error;
    wait_for_work_of(handle);
    if (!find_context(handle)) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    all_seen_complete(device);
    release_above_thresholds(device);
    return CUDA_SUCCESS;
}

SIM_CU(cuCtxSynchronize, (), ()) {
    Context *context = nullptr;
    if (const CUresult error = current_context(&context)) return error;
    return synchronize(*context);
}

SIM_CU(cuCtxSynchronize_v2, (CUcontext handle), (handle)) {
    Context *context = nullptr;
    if (const CUresult error = context_or_current(handle, &context)) return error;
    return synchronize(*context);
}

SIM_CU(cuCtxSetLimit, (CUlimit limit, size_t value), (limit, value)) {
    Context *context = nullptr;
    if (const CUresult error = current_context(&context)) return error;
    switch (limit) {
        case CU_LIMIT_STACK_SIZE: return context->set_stack(value);
        case CU_LIMIT_PRINTF_FIFO_SIZE: context->printf_limit = value; return CUDA_SUCCESS;
        case CU_LIMIT_MALLOC_HEAP_SIZE:
            if (context->heap_taken) return CUDA_ERROR_INVALID_VALUE;  // too late
            context->heap_limit = value;
            return CUDA_SUCCESS;
        case CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT: context->pending_launches = value; return CUDA_SUCCESS;
        case CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH: break;
    }
    return CUDA_ERROR_UNSUPPORTED_LIMIT;
}

SIM_CU(cuCtxGetLimit, (size_t * value, CUlimit limit), (value, limit)) {
    Context *context = nullptr;
    if (const CUresult error = current_context(&context)) return error;
    if (!value) return CUDA_ERROR_INVALID_VALUE;
    switch (limit) {
        case CU_LIMIT_STACK_SIZE: *value = context->stack_limit; return CUDA_SUCCESS;
        case CU_LIMIT_PRINTF_FIFO_SIZE: *value = context->printf_limit; return CUDA_SUCCESS;
        case CU_LIMIT_MALLOC_HEAP_SIZE: *value = context->heap_limit; return CUDA_SUCCESS;
        case CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT: *value = context->pending_launches; return CUDA_SUCCESS;
        case CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH: break;
    }
    return CUDA_ERROR_UNSUPPORTED_LIMIT;
}

SIM_CU(cuCtxGetApiVersion, (CUcontext handle, unsigned *version), (handle, version)) {
    Context *context = nullptr;
    if (const CUresult error = context_or_current(handle, &context)) return error;
    if (!version) return CUDA_ERROR_INVALID_VALUE;
    *version = 3020;  // of every form of cuCtxCreate that gives one
    return CUDA_SUCCESS;
}

SIM_CU(cuCtxEnablePeerAccess, (CUcontext peer, unsigned flags), (peer, flags)) {
    Context *context = nullptr;
    if (const CUresult error = current_context(&context)) return error;
    const Context *other = driver().contexts.find(peer);
    if (!other || other == context) return CUDA_ERROR_INVALID_CONTEXT;
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    if (other->device == context->device) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    return context->peers.insert(other->device).second ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
}

SIM_CU(cuCtxDisablePeerAccess, (CUcontext peer), (peer)) {
    Context *context = nullptr;
    if (const CUresult error = current_context(&context)) return error;
    const Context *other = driver().contexts.find(peer);
    if (!other) return CUDA_ERROR_INVALID_CONTEXT;
    return context->peers.erase(other->device) ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
}

}  // namespace curb::sim
