// Events. Recorded in a capture, one joins streams to it and cannot be waited for from outside.
#include "driver.hpp"
#include "running.hpp"

namespace curb::sim {

namespace {

CUresult find_event(CUevent handle, Event **event) {
    *event = driver().events.find(handle);
    return *event ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

Capture *capture_of(const Event &event) {
    for (const auto &capture : driver().captures)
        if (event.capture_id && capture->id == event.capture_id) return capture.get();
    return nullptr;
}

// For query and synchronise: outside the captured work the event is never reached.
CUresult refuse_captured(const Event &event) {
    Capture *capture = capture_of(event);
    if (!capture) return CUDA_SUCCESS;
    invalidate(*capture);
    return CUDA_ERROR_CAPTURED_EVENT;
}

CUresult elapsed(float *milliseconds, CUevent first, CUevent second) {
    Event *start = nullptr, *end = nullptr;
    if (const CUresult error = find_event(first, &start)) return error;
    if (const CUresult error = find_event(second, &end)) return error;
    if (!milliseconds) return CUDA_ERROR_INVALID_VALUE;
    if (!start->recorded || !end->recorded) return CUDA_ERROR_INVALID_HANDLE;
    if ((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING) return CUDA_ERROR_INVALID_HANDLE;
    *milliseconds = std::chrono::duration<float, std::milli>(end->time - start->time).count();
    return CUDA_SUCCESS;
}

}  // namespace

SIM_CU(cuEventCreate, (CUevent * event, unsigned flags), (event, flags)) {
    constexpr unsigned kKnown = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
    if (!event || flags & ~kKnown) return CUDA_ERROR_INVALID_VALUE;
    Context *context = nullptr;
    if (const CUresult error = current_context(&context)) return error;
    auto made = std::make_unique<Event>();
    made->context = context->handle;
    made->flags = flags;
    *event = driver().events.add(std::move(made))->handle;
    return CUDA_SUCCESS;
}

SIM_CU_STREAM(cuEventRecord, (CUevent handle, CUstream stream_handle), (handle, stream_handle)) {
    Event *event = nullptr;
    Stream *stream = nullptr;
    if (const CUresult error = find_event(handle, &event)) return error;
    if (const CUresult error = find_stream(stream_handle, &stream)) return error;
    if (event->context != stream->context) return CUDA_ERROR_INVALID_HANDLE;
    if (stream->capture && stream->capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (!stream->capture)
        if (const CUresult error = submit(*stream, CU_GRAPH_NODE_TYPE_EVENT_RECORD, [] {})) return error;
    event->recorded = true;
    event->stream_id = stream->id;
    event->capture_id = stream->capture ? stream->capture->id : 0;
    event->after = work_before(*stream);
    event->time = std::chrono::steady_clock::now();
    return CUDA_SUCCESS;
}

SIM_CU_STREAM(cuStreamWaitEvent, (CUstream stream_handle, CUevent handle, [[maybe_unused]] unsigned flags),
              (stream_handle, handle, flags)) {
    Event *event = nullptr;
    Stream *stream = nullptr;
    if (const CUresult error = find_stream(stream_handle, &stream)) return error;
    if (const CUresult error = find_event(handle, &event)) return error;
    Capture *capture = capture_of(*event);
    if (!capture) {
        if (stream->capture && event->recorded) {  // work from outside the capture
            invalidate(*stream->capture);
            return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
        }
        for (const auto &[id, ticket] : event->after) {
            uint64_t &known = stream->waited_for[id];
            known = std::max(known, ticket);
        }
        return CUDA_SUCCESS;
    }
    if (capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (stream->capture && stream->capture != capture) {
        invalidate(*capture);
        invalidate(*stream->capture);
        return CUDA_ERROR_STREAM_CAPTURE_MERGE;
    }
    if (stream->legacy) {
        invalidate(*capture);
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    if (!stream->capture) {
        stream->capture = capture;
        capture->forks[stream->id] = false;
    }
    // Joined by way of this stream, which may have to join in its turn.
    if (event->stream_id != stream->id && event->stream_id != capture->origin_id)
        capture->forks[event->stream_id] = true;
    return CUDA_SUCCESS;
}

SIM_CU(cuEventQuery, (CUevent handle), (handle)) {
    Event *event = nullptr;
    if (const CUresult error = find_event(handle, &event)) return error;
    if (const CUresult error = refuse_captured(*event)) return error;
    // A query says that the work is done, but pools do not learn from it (measured on an H200).
    if (const CUresult error = refuse_during_capture()) return error;
    return runs(event->after) ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

SIM_CU(cuEventSynchronize, (CUevent handle), (handle)) {
    Event *event = nullptr;
    if (const CUresult error = find_event(handle, &event)) return error;
    if (const CUresult error = refuse_captured(*event)) return error;
    if (const CUresult error = refuse_during_capture()) return error;
    const Progress work = event->after;
    const int device = driver().contexts.find(event->context)->device;
    wait_for_work(work);
    seen_complete(work);
    release_above_thresholds(device);
    return CUDA_SUCCESS;
}

SIM_CU(cuEventDestroy_v2, (CUevent handle), (handle)) {
    return driver().events.remove(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

SIM_CU(cuEventElapsedTime, (float *milliseconds, CUevent first, CUevent second), (milliseconds, first, second)) {
    return elapsed(milliseconds, first, second);
}
SIM_CU(cuEventElapsedTime_v2, (float *milliseconds, CUevent first, CUevent second), (milliseconds, first, second)) {
    return elapsed(milliseconds, first, second);
}

}  // namespace curb::sim
