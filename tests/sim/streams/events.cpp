// Events. An event recorded in a capture joins streams to it, and cannot be waited for from outside.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "driver.hpp"
#include "running.hpp"

namespace curb::sim {

namespace {

constexpr const char *kIpcEvent = "curb-sim-event-";  // how the handle begins; then the pid of its maker

Capture *capture_of(const Event &event) {
    for (const auto &capture : driver().captures)
        if (event.capture_id && capture->id == event.capture_id) return capture.get();
    return nullptr;
}

// For query and synchronise, which break the capture: outside it the event is never reached.
void refuse_captured(const Event &event) {
    Capture *capture = capture_of(event);
    if (!capture) return;
    invalidate(*capture);
    throw CUDA_ERROR_CAPTURED_EVENT;
}

void elapsed(float *milliseconds, CUevent first, CUevent second) {
    const Event *start = all<Event>().at(first), *end = all<Event>().at(second);
    if (!milliseconds) throw CUDA_ERROR_INVALID_VALUE;
    if (!start->recorded || !end->recorded) throw CUDA_ERROR_INVALID_HANDLE;
    if ((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING) throw CUDA_ERROR_INVALID_HANDLE;
    *milliseconds = std::chrono::duration<float, std::milli>(end->time - start->time).count();
}

}  // namespace

SIM_CU(2000, cuEventCreate, (CUevent * event, unsigned flags), (event, flags)) {
    constexpr unsigned kKnown = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
    if (!event || flags & ~kKnown) throw CUDA_ERROR_INVALID_VALUE;
    Context *context = current_context();
    auto made = std::make_unique<Event>();
    made->context = context->handle;
    made->flags = flags;
    *event = all<Event>().add(std::move(made))->handle;
}

SIM_CU_STREAM(2000, cuEventRecord, (CUevent handle, CUstream stream_handle), (handle, stream_handle)) {
    Event *event = all<Event>().at(handle);
    Stream *stream = find_stream(stream_handle);
    if (event->context != stream->context) throw CUDA_ERROR_INVALID_HANDLE;
    if (stream->capture && stream->capture->invalidated) throw CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (!stream->capture) submit(*stream, CU_GRAPH_NODE_TYPE_EVENT_RECORD, [](Stream &) {});
    event->recorded = true;
    event->stream_id = stream->id;
    event->capture_id = stream->capture ? stream->capture->id : 0;
    event->after = work_before(*stream);
    event->time = std::chrono::steady_clock::now();
}

SIM_CU_STREAM(3020, cuStreamWaitEvent, (CUstream stream_handle, CUevent handle, unsigned flags),
              (stream_handle, handle, flags)) {
    Stream *stream = find_stream(stream_handle);
    Event *event = all<Event>().at(handle);
    Capture *capture = capture_of(*event);
    if (!capture) {
        if (stream->capture && event->recorded) {  // work from outside the capture
            invalidate(*stream->capture);
            throw CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
        }
        for (const auto &[id, ticket] : event->after) {
            uint64_t &known = stream->waited_for[id];
            known = std::max(known, ticket);
        }
        return;
    }
    if (capture->invalidated) throw CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (stream->capture && stream->capture != capture) {
        invalidate(*capture);
        invalidate(*stream->capture);
        throw CUDA_ERROR_STREAM_CAPTURE_MERGE;
    }
    if (stream->legacy) {
        invalidate(*capture);
        throw CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    if (!stream->capture) {
        stream->capture = capture;
        capture->forks[stream->id] = false;
    }
    // The event's stream joins through this one, which must itself join unless it is the origin.
    if (event->stream_id != stream->id && event->stream_id != capture->origin_id)
        capture->forks[event->stream_id] = true;
}

SIM_CU(2000, cuEventQuery, (CUevent handle), (handle)) {
    Event *event = all<Event>().at(handle);
    refuse_captured(*event);
    // A query reports that the work is done, but pools do not learn from it (measured on an H200).
    refuse_during_capture();
    if (runs(event->after)) throw CUDA_ERROR_NOT_READY;
}

SIM_CU(2000, cuEventSynchronize, (CUevent handle), (handle)) {
    Event *event = all<Event>().at(handle);
    refuse_captured(*event);
    refuse_during_capture();
    const Progress work = event->after;
    const int device = all<Context>().find(event->context)->device;
    wait_for_work(work);
    seen_complete(work);
    release_above_thresholds(device);
}

// An opened event is one of its own: a record of its maker does not reach it.
SIM_CU(4010, cuIpcGetEventHandle, (CUipcEventHandle * handle, CUevent event), (handle, event)) {
    if (!handle) throw CUDA_ERROR_INVALID_VALUE;
    constexpr unsigned kNeeded = CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING;
    if ((all<Event>().at(event)->flags & kNeeded) != kNeeded) throw CUDA_ERROR_INVALID_HANDLE;
    *handle = {};
    std::snprintf(handle->reserved, sizeof handle->reserved, "%s%d", kIpcEvent, getpid());
}

SIM_CU(4010, cuIpcOpenEventHandle, (CUevent * event, CUipcEventHandle handle), (event, handle)) {
    if (!event) throw CUDA_ERROR_INVALID_VALUE;
    if (std::strncmp(handle.reserved, kIpcEvent, std::strlen(kIpcEvent)) != 0) throw CUDA_ERROR_INVALID_HANDLE;
    if (std::atoi(handle.reserved + std::strlen(kIpcEvent)) == getpid()) throw CUDA_ERROR_INVALID_CONTEXT;
    auto made = std::make_unique<Event>();
    made->context = current_context()->handle;
    made->flags = CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING;
    *event = all<Event>().add(std::move(made))->handle;
}

SIM_CU(4000, cuEventDestroy_v2, (CUevent handle), (handle)) { all<Event>().release(handle); }

SIM_CU(2000, cuEventElapsedTime, (float *milliseconds, CUevent first, CUevent second), (milliseconds, first, second)) {
    elapsed(milliseconds, first, second);
}
SIM_CU(12080, cuEventElapsedTime_v2, (float *milliseconds, CUevent first, CUevent second),
       (milliseconds, first, second)) {
    elapsed(milliseconds, first, second);
}

}  // namespace curb::sim
