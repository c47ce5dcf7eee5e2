#include "capture.hpp"

#include <algorithm>

#include "driver.hpp"

namespace curb::sim {

void invalidate(Capture &capture) { capture.invalidated = true; }

CUresult refuse_during_capture() {
    const CUstreamCaptureMode mode = this_thread().capture_mode;
    if (mode == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
    CUresult refusal = CUDA_SUCCESS;
    for (const auto &capture : driver().captures) {
        const bool own = capture->thread == this_thread_id() && capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
        const bool global = capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL && mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
        if (!own && !global) continue;
        invalidate(*capture);
        refusal = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return refusal;
}

CUresult refuse_synchronising_captured(CUcontext context) {
    CUresult refusal = CUDA_SUCCESS;
    for (const auto &capture : driver().captures) {
        if (capture->context != context) continue;
        invalidate(*capture);
        refusal = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return refusal;
}

CUresult refuse_if_capturing(const Stream &stream) {
    if (stream.capture) {
        if (stream.capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        invalidate(*stream.capture);
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    if (!stream.legacy) return CUDA_SUCCESS;
    // The legacy stream would wait for the captured one.
    CUresult refusal = CUDA_SUCCESS;
    for (const auto &capture : driver().captures) {
        if (capture->context != stream.context || !capture->origin_blocking) continue;
        invalidate(*capture);
        refusal = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    return refusal;
}

// The graph being made, which its owner may have destroyed if it is not the capture's own.
static CUresult graph_of(Capture &capture, Graph **graph) {
    *graph = driver().graphs.find(capture.graph);
    if (!*graph) invalidate(capture);
    return capture.invalidated ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
}

CUresult submit(Stream &stream, CUgraphNodeType type, std::function<void()> work, std::function<CUresult()> prepare) {
    Capture *capture = stream.capture;
    if (!capture) {
        if (const CUresult error = refuse_if_capturing(stream)) return error;
        if (prepare)
            if (const CUresult error = prepare()) return error;
        ++driver().last_ticket;
        work();
        return CUDA_SUCCESS;
    }
    Graph *graph = nullptr;
    if (const CUresult error = graph_of(*capture, &graph)) return error;
    if (stream.id != capture->origin_id) capture->forks[stream.id] = false;
    add_node(*graph, type, std::move(work), 0);
    graph->nodes.back()->prepare = std::move(prepare);
    return CUDA_SUCCESS;
}

CUresult capture_allocation(Stream &stream, const CUmemPoolProps &properties, uint64_t bytes, CUdeviceptr *start) {
    Graph *graph = nullptr;
    if (const CUresult error = graph_of(*stream.capture, &graph)) return error;
    CUDA_MEM_ALLOC_NODE_PARAMS params{};
    params.poolProps = properties;
    params.poolProps.handleTypes = CU_MEM_HANDLE_TYPE_NONE;
    params.bytesize = bytes;
    CUgraphNode node = nullptr;
    if (const CUresult error = add_allocation_node(*graph, params, &node)) return error;
    *start = params.dptr;
    return CUDA_SUCCESS;
}

CUresult capture_free(Stream &stream, CUdeviceptr start) {
    Graph *graph = nullptr;
    if (const CUresult error = graph_of(*stream.capture, &graph)) return error;
    const bool own = std::any_of(graph->nodes.begin(), graph->nodes.end(),
                                 [=](const auto &node) { return node->memory && node->memory->start == start; });
    if (!own && !driver().live_graph_memory.count(start)) return CUDA_ERROR_INVALID_VALUE;
    add_node(*graph, CU_GRAPH_NODE_TYPE_MEM_FREE, {}, start);
    return CUDA_SUCCESS;
}

namespace {

void leave_capture(const Capture &capture) {
    const auto leave = [&](Stream &stream) {
        if (stream.capture == &capture) stream.capture = nullptr;
    };
    driver().streams.each(leave);
    driver().contexts.each([&](const Context &context) {
        for (const auto &[thread, stream] : context.per_thread_streams) leave(*stream);
    });
}

CUresult begin(CUstream handle, CUgraph graph, CUstreamCaptureMode mode) {
    Stream *stream = nullptr;
    if (mode < CU_STREAM_CAPTURE_MODE_GLOBAL || mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult error = find_stream(handle, &stream)) return error;
    if (stream->legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (stream->capture) return CUDA_ERROR_ILLEGAL_STATE;
    auto capture = std::make_unique<Capture>(Capture{.id = next_handle(),

                                                     .origin_id = stream->id,
                                                     .context = stream->context,
                                                     .mode = mode,
                                                     .thread = this_thread_id(),
                                                     .graph = graph,
                                                     .graph_is_the_callers = graph != nullptr,
                                                     .origin_blocking = !(stream->flags & CU_STREAM_NON_BLOCKING),
                                                     .forks = {}});
    if (!graph) capture->graph = driver().graphs.add(std::make_unique<Graph>())->handle;
    stream->capture = capture.get();
    driver().captures.push_back(std::move(capture));
    return CUDA_SUCCESS;
}

}  // namespace

void abandon(Capture &capture) {
    leave_capture(capture);
    std::erase_if(driver().captures, [&](const auto &one) { return one.get() == &capture; });
}

SIM_CU_STREAM(cuStreamBeginCapture, (CUstream stream), (stream)) {
    return begin(stream, nullptr, CU_STREAM_CAPTURE_MODE_GLOBAL);
}
SIM_CU_STREAM(cuStreamBeginCapture_v2, (CUstream stream, CUstreamCaptureMode mode), (stream, mode)) {
    return begin(stream, nullptr, mode);
}

SIM_CU_STREAM(cuStreamBeginCaptureToGraph,
              (CUstream stream, CUgraph graph, [[maybe_unused]] const CUgraphNode *before,
               [[maybe_unused]] const CUgraphEdgeData *edges, [[maybe_unused]] size_t count, CUstreamCaptureMode mode),
              (stream, graph, before, edges, count, mode)) {
    return driver().graphs.find(graph) ? begin(stream, graph, mode) : CUDA_ERROR_INVALID_VALUE;
}

SIM_CU_STREAM(cuStreamEndCapture, (CUstream handle, CUgraph *graph), (handle, graph)) {
    Stream *stream = nullptr;
    if (const CUresult error = find_stream(handle, &stream)) return error;
    if (!graph) return CUDA_ERROR_INVALID_VALUE;
    Capture *capture = stream->capture;
    if (!capture) return CUDA_ERROR_ILLEGAL_STATE;
    if (capture->origin_id != stream->id) return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    if (capture->thread != this_thread_id() && capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED) {
        // Refused, and ended all the same: the right thread then finds no capture (measured on an H200).
        if (!capture->graph_is_the_callers) driver().graphs.remove(capture->graph);
        abandon(*capture);
        return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    }
    Graph *made = nullptr;
    const CUresult broken = graph_of(*capture, &made);
    const bool joined =
        std::all_of(capture->forks.begin(), capture->forks.end(), [](const auto &fork) { return fork.second; });
    const CUresult result = broken || joined ? broken : CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    *graph = result ? nullptr : capture->graph;
    if (result && !capture->graph_is_the_callers) driver().graphs.remove(capture->graph);
    abandon(*capture);
    return result;
}

static CUstreamCaptureStatus status_of(const Stream &stream) {
    if (!stream.capture) return CU_STREAM_CAPTURE_STATUS_NONE;
    return stream.capture->invalidated ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

// On the legacy stream it cannot say while another captures; that call itself harms nothing (cuda.h).
static CUresult refuse_asking_legacy(const Stream &stream) {
    const auto &captures = driver().captures;
    const bool implicit = stream.legacy && std::any_of(captures.begin(), captures.end(), [&](const auto &capture) {
                              return capture->context == stream.context && capture->origin_blocking;
                          });
    return implicit ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT : CUDA_SUCCESS;
}

SIM_CU_STREAM(cuStreamIsCapturing, (CUstream handle, CUstreamCaptureStatus *status), (handle, status)) {
    Stream *stream = nullptr;
    if (const CUresult error = find_stream(handle, &stream)) return error;
    if (!status) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult error = refuse_asking_legacy(*stream)) return error;
    *status = status_of(*stream);
    return CUDA_SUCCESS;
}

SIM_CU_STREAM(cuStreamGetCaptureInfo_v2,
              (CUstream handle, CUstreamCaptureStatus *status, uint64_t *id, CUgraph *graph, const CUgraphNode **nodes,
               size_t *count),
              (handle, status, id, graph, nodes, count)) {
    Stream *stream = nullptr;
    if (const CUresult error = find_stream(handle, &stream)) return error;
    if (!status) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult error = refuse_asking_legacy(*stream)) return error;
    *status = status_of(*stream);
    if (*status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return CUDA_SUCCESS;
    if (id) *id = stream->capture->id;
    if (graph) *graph = stream->capture->graph;
    if (nodes) *nodes = nullptr;  // dependencies are not modelled
    if (count) *count = 0;
    return CUDA_SUCCESS;
}

SIM_CU(cuThreadExchangeStreamCaptureMode, (CUstreamCaptureMode * mode), (mode)) {
    if (!mode || *mode < CU_STREAM_CAPTURE_MODE_GLOBAL || *mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    std::swap(*mode, this_thread().capture_mode);
    return CUDA_SUCCESS;
}

}  // namespace curb::sim
