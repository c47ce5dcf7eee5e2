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
    Driver &model = driver();
    // Stream-ordered and VMM allocations outlive contexts (cuda.h, cuCtxDestroy); plain ones do not.
    std::erase_if(model.allocations, [&](const auto &entry) {
        const Allocation &allocation = entry.second;
        if (allocation.context != handle) return false;
        if (allocation.kind == Allocation::Kind::managed) free_managed(allocation);
        return allocation.kind == Allocation::Kind::plain || allocation.kind == Allocation::Kind::managed;
    });
    std::vector<Capture *> captures;
    for (const auto &capture : model.captures)
        if (capture->context == handle) captures.push_back(capture.get());
    for (Capture *capture : captures) abandon(*capture);
    std::erase_if(model.late_frees, [&](const LateFree &late) { return late.context == handle; });
    forget_arrays_of(handle);
    unload_modules_of(handle);
    all<Stream>().remove_if([&](const Stream &stream) { return stream.context == handle; });
    all<Event>().remove_if([&](const Event &event) { return event.context == handle; });
    credit(device, Use::context, overhead + stack_bytes(stack_limit) + heap_taken);
    credit(device, Use::modules, code_kept);
    // The end of a context waits for its work, so its pools see that complete.
    all_seen_complete(device);
    release_above_thresholds(device);
}

void Context::set_stack(uint64_t limit) {
    limit = round_up(limit, kStackUnit);
    if (limit > kAbsurd / kStacks) throw CUDA_ERROR_OUT_OF_MEMORY;
    if (limit > stack_limit)
        charge(device, Use::context, stack_bytes(limit) - stack_bytes(stack_limit));
    else
        credit(device, Use::context, stack_bytes(stack_limit) - stack_bytes(limit));
    stack_limit = limit;
}

void Context::take_heap() {
    if (heap_taken) return;
    const uint64_t size = round_up(heap_limit, kGranule) + kGranule;
    charge(device, Use::context, size);
    heap_taken = size;
}

namespace {

// The caller has charged its memory.
void make_context(CUcontext handle, int device, unsigned flags) {
    this_call_is_about(kGiB);
    all<Context>().add(std::make_unique<Context>(handle, device, flags));
}

void push(CUcontext context) {
    Thread &thread = this_thread();
    if (thread.depth == Thread::kDeepest) throw CUDA_ERROR_INVALID_VALUE;
    thread.stack[thread.depth++] = context;
}

void create(CUcontext *context, unsigned flags, CUdevice device) {
    if (!context) throw CUDA_ERROR_INVALID_VALUE;
    find_device(device);
    if (this_thread().depth == Thread::kDeepest) throw CUDA_ERROR_INVALID_VALUE;
    charge(device, Use::context, kContextBytes);
    *context = make_handle<CUcontext>();
    make_context(*context, device, flags);
    push(*context);
}

bool is_primary(CUcontext context) {
    const auto &devices = driver().devices;
    return std::any_of(devices.begin(), devices.end(), [=](const Device &device) { return device.primary == context; });
}

void destroy(CUcontext context) {
    if (!context) throw CUDA_ERROR_INVALID_VALUE;
    if (is_primary(context) || !all<Context>().find(context)) throw CUDA_ERROR_INVALID_CONTEXT;
    wait_for_work_of(context);
    all<Context>().at(context);
    // It leaves the top of the calling thread's stack. On other stacks it stays, and calls in it return
    // CUDA_ERROR_CONTEXT_IS_DESTROYED (cuda.h, cuCtxDestroy).
    Thread &thread = this_thread();
    if (thread.depth && thread.stack[thread.depth - 1] == context) --thread.depth;
    all<Context>().remove(context);
    free_handle(context);
}

void release(CUdevice device) { release_primary(*find_device(device)); }

void reset_primary(CUdevice device) {
    Device *found = find_device(device);
    wait_for_work_of(found->primary);
    found->primary_references = 0;
    all<Context>().remove(found->primary);
    note_reset();
}

}  // namespace

Context *retain_primary(Device &device) {
    if (!device.primary_references) {
        charge(device.index, Use::context, kContextBytes);
        make_context(device.primary, device.index, device.primary_flags);
    }
    ++device.primary_references;
    return all<Context>().at(device.primary);
}

void release_primary(Device &device) {
    if (device.primary_references == 1) wait_for_work_of(device.primary);
    if (!device.primary_references) throw CUDA_ERROR_INVALID_CONTEXT;
    if (--device.primary_references == 0) all<Context>().remove(device.primary);
}

SIM_CU(7000, cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device), (context, device)) {
    Device *found = find_device(device);
    if (!context) throw CUDA_ERROR_INVALID_VALUE;
    *context = retain_primary(*found)->handle;
}

SIM_CU(7000, cuDevicePrimaryCtxRelease, (CUdevice device), (device)) { release(device); }
SIM_CU(11000, cuDevicePrimaryCtxRelease_v2, (CUdevice device), (device)) { release(device); }
SIM_CU(7000, cuDevicePrimaryCtxReset, (CUdevice device), (device)) { reset_primary(device); }
SIM_CU(11000, cuDevicePrimaryCtxReset_v2, (CUdevice device), (device)) { reset_primary(device); }

SIM_CU(11000, cuDevicePrimaryCtxSetFlags_v2, (CUdevice device, unsigned flags), (device, flags)) {
    find_device(device)->primary_flags = flags;
}

SIM_CU(7000, cuDevicePrimaryCtxGetState, (CUdevice device, unsigned *flags, int *active), (device, flags, active)) {
    Device *found = find_device(device);
    if (!flags || !active) throw CUDA_ERROR_INVALID_VALUE;
    *flags = found->primary_flags;
    *active = found->primary_references > 0;
}

// The first version is for 32-bit programs; in others it returns this (measured on an H200).
SIM_CU(2000, cuCtxCreate, (CUcontext * context, unsigned flags, CUdevice device), (context, flags, device)) {
    throw CUDA_ERROR_OUT_OF_MEMORY;
}
SIM_CU(3020, cuCtxCreate_v2, (CUcontext * context, unsigned flags, CUdevice device), (context, flags, device)) {
    create(context, flags, device);
}
SIM_CU(11040, cuCtxCreate_v3,
       (CUcontext * context, CUexecAffinityParam *affinity, int affinities, unsigned flags, CUdevice device),
       (context, affinity, affinities, flags, device)) {
    create(context, flags, device);
}
SIM_CU(12050, cuCtxCreate_v4, (CUcontext * context, CUctxCreateParams *parameters, unsigned flags, CUdevice device),
       (context, parameters, flags, device)) {
    create(context, flags, device);
}

SIM_CU(2000, cuCtxDestroy, (CUcontext context), (context)) { destroy(context); }
SIM_CU(4000, cuCtxDestroy_v2, (CUcontext context), (context)) { destroy(context); }

SIM_CU(2000, cuCtxAttach, (CUcontext * context, unsigned flags), (context, flags)) {
    if (!context || flags) throw CUDA_ERROR_INVALID_VALUE;
    Context *current = current_context();
    ++current->attached;
    *context = current->handle;
}

SIM_CU(2000, cuCtxDetach, (CUcontext context), (context)) {
    Context *found = all<Context>().at(context);
    if (!--found->attached) destroy(context);
}

SIM_CU(4000, cuCtxPushCurrent_v2, (CUcontext context), (context)) {
    if (!context) throw CUDA_ERROR_INVALID_VALUE;
    if (!find_context(context)) throw CUDA_ERROR_INVALID_CONTEXT;
    push(context);
}

SIM_CU(4000, cuCtxPopCurrent_v2, (CUcontext * context), (context)) {
    Thread &thread = this_thread();
    if (!thread.depth) throw CUDA_ERROR_INVALID_CONTEXT;
    --thread.depth;
    if (context) *context = thread.stack[thread.depth];
}

// Replaces the top of the stack; null pops it.
SIM_CU(4000, cuCtxSetCurrent, (CUcontext context), (context)) {
    Thread &thread = this_thread();
    if (context && !find_context(context)) throw CUDA_ERROR_INVALID_CONTEXT;
    if (thread.depth) --thread.depth;
    if (context) push(context);
}

SIM_CU(4000, cuCtxGetCurrent, (CUcontext * context), (context)) {
    if (!context) throw CUDA_ERROR_INVALID_VALUE;
    const Thread &thread = this_thread();
    *context = thread.depth ? thread.stack[thread.depth - 1] : nullptr;
}

// The CUDA 13 forms name the context; null means the current one.
static Context *context_or_current(CUcontext handle) {
    if (!handle) return current_context();
    Context *context = find_context(handle);
    return context ? context : throw CUDA_ERROR_INVALID_CONTEXT;
}

template <class Out, class Member>
static void tell(CUcontext handle, Out *out, Member Context::*member) {
    Context *context = context_or_current(handle);
    if (!out) throw CUDA_ERROR_INVALID_VALUE;
    *out = context->*member;
}

SIM_CU(2000, cuCtxGetDevice, (CUdevice * device), (device)) { tell(nullptr, device, &Context::device); }
SIM_CU(13000, cuCtxGetDevice_v2, (CUdevice * device, CUcontext handle), (device, handle)) {
    tell(handle, device, &Context::device);
}
SIM_CU(7000, cuCtxGetFlags, (unsigned *flags), (flags)) { tell(nullptr, flags, &Context::flags); }

static void synchronize(const Context &context) {
    const CUcontext handle = context.handle;
    const int device = context.device;
    refuse_synchronising_captured(handle);
    wait_for_work_of(handle);
    if (!find_context(handle)) throw CUDA_ERROR_CONTEXT_IS_DESTROYED;
    all_seen_complete(device);
    release_above_thresholds(device);
}

SIM_CU(2000, cuCtxSynchronize, (), ()) { synchronize(*current_context()); }
SIM_CU(13000, cuCtxSynchronize_v2, (CUcontext handle), (handle)) { synchronize(*context_or_current(handle)); }

static size_t &limit_of(Context &context, CUlimit limit) {
    switch (limit) {
        case CU_LIMIT_STACK_SIZE: return context.stack_limit;
        case CU_LIMIT_PRINTF_FIFO_SIZE: return context.printf_limit;
        case CU_LIMIT_MALLOC_HEAP_SIZE: return context.heap_limit;
        case CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT: return context.pending_launches;
        case CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH: break;
    }
    throw CUDA_ERROR_UNSUPPORTED_LIMIT;
}

SIM_CU(3010, cuCtxSetLimit, (CUlimit limit, size_t value), (limit, value)) {
    Context *context = current_context();
    if (limit == CU_LIMIT_STACK_SIZE) return context->set_stack(value);
    if (limit == CU_LIMIT_MALLOC_HEAP_SIZE && context->heap_taken) throw CUDA_ERROR_INVALID_VALUE;  // too late
    limit_of(*context, limit) = value;
}

SIM_CU(3010, cuCtxGetLimit, (size_t * value, CUlimit limit), (value, limit)) {
    Context *context = current_context();
    if (!value) throw CUDA_ERROR_INVALID_VALUE;
    *value = limit_of(*context, limit);
}

SIM_CU(3020, cuCtxGetApiVersion, (CUcontext handle, unsigned *version), (handle, version)) {
    context_or_current(handle);
    if (!version) throw CUDA_ERROR_INVALID_VALUE;
    *version = 3020;  // the same for every form of cuCtxCreate
}

SIM_CU(4000, cuCtxEnablePeerAccess, (CUcontext peer, unsigned flags), (peer, flags)) {
    Context *context = current_context();
    const Context *other = all<Context>().find(peer);
    if (!other || other == context) throw CUDA_ERROR_INVALID_CONTEXT;
    if (flags) throw CUDA_ERROR_INVALID_VALUE;
    if (other->device == context->device) throw CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    if (!(context->peers.insert(other->device).second)) throw CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
}

SIM_CU(4000, cuCtxDisablePeerAccess, (CUcontext peer), (peer)) {
    Context *context = current_context();
    const Context *other = all<Context>().at(peer);
    if (!(context->peers.erase(other->device))) throw CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
}

}  // namespace curb::sim
