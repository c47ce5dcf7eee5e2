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

Stream *find_stream(CUstream handle) {
    const bool null_is_per_thread = this_thread().null_stream == NullStream::per_thread;
    const bool per_thread = handle == CU_STREAM_PER_THREAD || (!handle && null_is_per_thread);
    if (!per_thread && handle && handle != CU_STREAM_LEGACY) return all<Stream>().at(handle);
    Context *context = current_context();
    if (!per_thread) return context->legacy_stream.get();
    std::unique_ptr<Stream> &own = context->per_thread_streams[this_thread_id()];
    if (!own) own = make_stream(context->handle, context->device, CU_STREAM_DEFAULT, 0);
    return own.get();
}

Progress work_before(const Stream &stream) {
    const uint64_t now = driver().last_ticket;
    Progress progress = stream.waited_for;
    progress[stream.id] = now;
    if (stream.flags & CU_STREAM_NON_BLOCKING) return progress;
    const Context *context = all<Context>().find(stream.context);
    if (!stream.legacy) {
        progress[context->legacy_stream->id] = now;
        return progress;
    }
    all<Stream>().each([&](const Stream &other) {
        if (other.context == stream.context && !(other.flags & CU_STREAM_NON_BLOCKING)) progress[other.id] = now;
    });
    for (const auto &[thread, other] : context->per_thread_streams) progress[other->id] = now;
    return progress;
}

template <class Predicate>
static void finish_late_frees(Predicate is_complete) {
    std::erase_if(driver().late_frees, [&](const LateFree &late) {
        const bool complete = is_complete(late);
        if (complete) all<Context>().find(late.context)->plain.give(late.start);
        return complete;
    });
}

void seen_complete(const Progress &progress) {
    finish_late_frees([&](const LateFree &late) { return covers(progress, late.stream_id, late.ticket); });
    all<Pool>().each([&](Pool &pool) { pool.seen_complete(progress); });
    for (const auto &pool : driver().dying_pools) pool->seen_complete(progress);
}

void all_seen_complete(int device) {
    const auto seen = [=](Pool &pool) {
        if (!pool.on_device() || pool.is_of(device)) pool.all_seen_complete();
    };
    finish_late_frees([=](const LateFree &late) { return all<Context>().find(late.context)->device == device; });
    all<Pool>().each(seen);
    for (const auto &pool : driver().dying_pools) seen(*pool);
}

namespace {

void create_stream(CUstream *stream, unsigned flags, int priority) {
    if (!stream || flags & ~unsigned{CU_STREAM_NON_BLOCKING}) throw CUDA_ERROR_INVALID_VALUE;
    Context *context = current_context();
    *stream = all<Stream>().add(make_stream(context->handle, context->device, flags, priority))->handle;
}

}  // namespace

SIM_CU(2000, cuStreamCreate, (CUstream * stream, unsigned flags), (stream, flags)) { create_stream(stream, flags, 0); }
SIM_CU(5050, cuStreamCreateWithPriority, (CUstream * stream, unsigned flags, int priority), (stream, flags, priority)) {
    create_stream(stream, flags, priority);
}

static void destroy(CUstream handle) {
    Stream *stream = all<Stream>().at(handle);
    if (Capture *capture = stream->capture) capture->origin_id == stream->id ? abandon(*capture) : invalidate(*capture);
    all<Stream>().remove(handle);
}

SIM_CU(2000, cuStreamDestroy, (CUstream handle), (handle)) { destroy(handle); }
SIM_CU(4000, cuStreamDestroy_v2, (CUstream handle), (handle)) { destroy(handle); }

SIM_CU_STREAM(2000, cuStreamSynchronize, (CUstream handle), (handle)) {
    Stream *stream = find_stream(handle);
    refuse_if_capturing(*stream);
    refuse_during_capture();
    const Progress work = work_before(*stream);
    const int device = stream->device;
    wait_for_work(work);
    seen_complete(work);
    release_above_thresholds(device);
}

SIM_CU_STREAM(2000, cuStreamQuery, (CUstream handle), (handle)) {
    Stream *stream = find_stream(handle);
    refuse_if_capturing(*stream);
    refuse_during_capture();
    const Progress work = work_before(*stream);
    if (runs(work)) throw CUDA_ERROR_NOT_READY;
    seen_complete(work);
}

template <class Out, class Member>
static void tell(CUstream handle, Out *out, Member Stream::*member) {
    Stream *stream = find_stream(handle);
    if (!out) throw CUDA_ERROR_INVALID_VALUE;
    *out = stream->*member;
}

SIM_CU_STREAM(9020, cuStreamGetCtx, (CUstream handle, CUcontext *context), (handle, context)) {
    tell(handle, context, &Stream::context);
}

SIM_CU_STREAM(5050, cuStreamGetFlags, (CUstream handle, unsigned *flags), (handle, flags)) {
    tell(handle, flags, &Stream::flags);
}

SIM_CU_STREAM(5050, cuStreamGetPriority, (CUstream handle, int *priority), (handle, priority)) {
    tell(handle, priority, &Stream::priority);
}

SIM_CU_STREAM(12000, cuStreamGetId, (CUstream handle, unsigned long long *id), (handle, id)) {
    tell(handle, id, &Stream::id);
}

SIM_CU_STREAM(12080, cuStreamGetDevice, (CUstream handle, CUdevice *device), (handle, device)) {
    Stream *stream = find_stream(handle);
    if (!device) throw CUDA_ERROR_INVALID_VALUE;
    // A mere question, but it breaks a capture in this stream (measured on an H200; cuStreamGetCtx does not).
    if (stream->capture) {
        invalidate(*stream->capture);
        throw CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    *device = stream->device;
}

SIM_CU_STREAM(10000, cuLaunchHostFunc, (CUstream handle, CUhostFn function, void *argument),
              (handle, function, argument)) {
    if (!function) throw CUDA_ERROR_INVALID_VALUE;
    Stream *stream = find_stream(handle);
    submit(*stream, CU_GRAPH_NODE_TYPE_HOST, [=](Stream &on) { begin_host_call(on, [=] { function(argument); }); });
}

// Not captured, unlike cuLaunchHostFunc (cuda.h).
SIM_CU_STREAM(5000, cuStreamAddCallback, (CUstream handle, CUstreamCallback callback, void *argument, unsigned flags),
              (handle, callback, argument, flags)) {
    if (!callback || flags) throw CUDA_ERROR_INVALID_VALUE;
    Stream *stream = find_stream(handle);
    if (stream->capture) {
        invalidate(*stream->capture);
        throw CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    begin_host_call(*stream, [=] { callback(handle, CUDA_SUCCESS, argument); });
}

}  // namespace curb::sim
