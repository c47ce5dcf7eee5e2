#include "streams.hpp"

#include "driver.hpp"
#include "running.hpp"

namespace curb::sim {

std::unique_ptr<Stream> make_stream(CUcontext context, int device, unsigned flags, int priority) {
    auto stream = std::make_unique<Stream>();
    stream->context = context;
    stream->device = device;
    stream->flags = flags;
    stream->priority = priority;
    stream->id = next_handle();
    return stream;
}

CUresult find_stream(CUstream handle, Stream **stream) {
    const bool null_is_per_thread = this_thread().null_stream == NullStream::per_thread;
    const bool per_thread = handle == CU_STREAM_PER_THREAD || (!handle && null_is_per_thread);
    if (!per_thread && handle && handle != CU_STREAM_LEGACY) {
        *stream = driver().streams.find(handle);
        return *stream ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
    }
    Context *context = nullptr;
    if (const CUresult error = current_context(&context)) return error;
    if (per_thread) {
        std::unique_ptr<Stream> &own = context->per_thread_streams[this_thread_id()];
        if (!own) own = make_stream(context->handle, context->device, CU_STREAM_DEFAULT, 0);
        *stream = own.get();
    } else {
        *stream = context->legacy_stream.get();
    }
    return CUDA_SUCCESS;
}

Progress work_before(const Stream &stream) {
    const uint64_t now = driver().last_ticket;
    Progress progress = stream.waited_for;
    progress[stream.id] = now;
    if (stream.flags & CU_STREAM_NON_BLOCKING) return progress;
    const Context *context = driver().contexts.find(stream.context);
    if (!stream.legacy) {
        progress[context->legacy_stream->id] = now;
        return progress;
    }
    driver().streams.each([&](const Stream &other) {
        if (other.context == stream.context && !(other.flags & CU_STREAM_NON_BLOCKING)) progress[other.id] = now;
    });
    for (const auto &[thread, other] : context->per_thread_streams) progress[other->id] = now;
    return progress;
}

template <class Predicate>
static void finish_late_frees(Predicate is_complete) {
    std::erase_if(driver().late_frees, [&](const LateFree &late) {
        const bool complete = is_complete(late);
        if (complete) driver().contexts.find(late.context)->plain.give(late.start);
        return complete;
    });
}

void seen_complete(const Progress &progress) {
    finish_late_frees([&](const LateFree &late) { return covers(progress, late.stream_id, late.ticket); });
    driver().pools.each([&](Pool &pool) { pool.seen_complete(progress); });
    for (const auto &pool : driver().dying_pools) pool->seen_complete(progress);
}

void all_seen_complete(int device) {
    const auto seen = [=](Pool &pool) {
        if (!pool.on_device() || pool.is_of(device)) pool.all_seen_complete();
    };
    finish_late_frees([=](const LateFree &late) { return driver().contexts.find(late.context)->device == device; });
    driver().pools.each(seen);
    for (const auto &pool : driver().dying_pools) seen(*pool);
}

namespace {

CUresult create_stream(CUstream *stream, unsigned flags, int priority) {
    if (!stream || flags & ~unsigned{CU_STREAM_NON_BLOCKING}) return CUDA_ERROR_INVALID_VALUE;
    Context *context = nullptr;
    if (const CUresult error = current_context(&context)) return error;
    *stream = driver().streams.add(make_stream(context->handle, context->device, flags, priority))->handle;
    return CUDA_SUCCESS;
}

}  // namespace

SIM_CU(cuStreamCreate, (CUstream * stream, unsigned flags), (stream, flags)) { return create_stream(stream, flags, 0); }
SIM_CU(cuStreamCreateWithPriority, (CUstream * stream, unsigned flags, int priority), (stream, flags, priority)) {
    return create_stream(stream, flags, priority);
}

static CUresult destroy(CUstream handle) {
    Stream *stream = driver().streams.find(handle);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    if (Capture *capture = stream->capture) capture->origin_id == stream->id ? abandon(*capture) : invalidate(*capture);
    driver().streams.remove(handle);
    return CUDA_SUCCESS;
}

SIM_CU(cuStreamDestroy, (CUstream handle), (handle)) { return destroy(handle); }
SIM_CU(cuStreamDestroy_v2, (CUstream handle), (handle)) { return destroy(handle); }

SIM_CU_STREAM(cuStreamSynchronize, (CUstream handle), (handle)) {
    Stream *stream = nullptr;
    if (const CUresult error = find_stream(handle, &stream)) return error;
    if (const CUresult error = refuse_if_capturing(*stream)) return error;
    if (const CUresult error = refuse_during_capture()) return error;
    const Progress work = work_before(*stream);
    const int device = stream->device;
    wait_for_work(work);
    seen_complete(work);
    release_above_thresholds(device);
    return CUDA_SUCCESS;
}

SIM_CU_STREAM(cuStreamQuery, (CUstream handle), (handle)) {
    Stream *stream = nullptr;
    if (const CUresult error = find_stream(handle, &stream)) return error;
    if (const CUresult error = refuse_if_capturing(*stream)) return error;
    if (const CUresult error = refuse_during_capture()) return error;
    const Progress work = work_before(*stream);
    if (runs(work)) return CUDA_ERROR_NOT_READY;
    seen_complete(work);
    return CUDA_SUCCESS;
}

template <class Out, class Member>
static CUresult tell(CUstream handle, Out *out, Member Stream::*member) {
    Stream *stream = nullptr;
    if (const CUresult error = find_stream(handle, &stream)) return error;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    *out = stream->*member;
    return CUDA_SUCCESS;
}

SIM_CU_STREAM(cuStreamGetCtx, (CUstream handle, CUcontext *context), (handle, context)) {
    return tell(handle, context, &Stream::context);
}

SIM_CU_STREAM(cuStreamGetFlags, (CUstream handle, unsigned *flags), (handle, flags)) {
    return tell(handle, flags, &Stream::flags);
}

SIM_CU_STREAM(cuStreamGetPriority, (CUstream handle, int *priority), (handle, priority)) {
    return tell(handle, priority, &Stream::priority);
}

SIM_CU_STREAM(cuStreamGetId, (CUstream handle, unsigned long long *id), (handle, id)) {
    return tell(handle, id, &Stream::id);
}

SIM_CU_STREAM(cuStreamGetDevice, (CUstream handle, CUdevice *device), (handle, device)) {
    Stream *stream = nullptr;
    if (const CUresult error = find_stream(handle, &stream)) return error;
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    // Harmless as it looks, it breaks a capture in this stream (measured on an H200; cuStreamGetCtx does not).
    if (stream->capture) {
        invalidate(*stream->capture);
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    *device = stream->device;
    return CUDA_SUCCESS;
}

SIM_CU_STREAM(cuLaunchHostFunc, (CUstream handle, CUhostFn function, void *argument), (handle, function, argument)) {
    if (!function) return CUDA_ERROR_INVALID_VALUE;
    Stream *stream = nullptr;
    if (const CUresult error = find_stream(handle, &stream)) return error;
    return submit(*stream, CU_GRAPH_NODE_TYPE_HOST, [=] { run_unlocked([=] { function(argument); }); });
}

}  // namespace curb::sim
