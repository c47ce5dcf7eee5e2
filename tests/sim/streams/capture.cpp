#include "capture.hpp"

#include <algorithm>

#include "driver.hpp"

namespace curb::sim {

void invalidate(Capture &capture) { capture.invalidated = true; }

// Breaks the captures for which `is_in_the_way` is true. Throws `error` if there are any.
template <class Predicate>
static void break_captures(CUresult error, Predicate is_in_the_way) {
    bool any = false;
    for (const auto &capture : driver().captures) {
        if (!is_in_the_way(*capture)) continue;
        invalidate(*capture);
        any = true;
    }
    if (any) throw error;
}

void refuse_during_capture() {
    const CUstreamCaptureMode mode = this_thread().capture_mode;
    if (mode == CU_STREAM_CAPTURE_MODE_RELAXED) return;
    break_captures(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, [=](const Capture &capture) {
        const bool own = capture.thread == this_thread_id() && capture.mode != CU_STREAM_CAPTURE_MODE_RELAXED;
        return own || (capture.mode == CU_STREAM_CAPTURE_MODE_GLOBAL && mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
    });
}

void refuse_synchronising_captured(CUcontext context) {
    break_captures(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                   [=](const Capture &capture) { return capture.context == context; });
}

// True if `stream` is the legacy stream and would wait for the captured one.
static bool is_waited_for(const Capture &capture, const Stream &stream) {
    return stream.legacy && capture.context == stream.context && capture.origin_blocking;
}

void refuse_if_capturing(const Stream &stream) {
    if (stream.capture) {
        if (stream.capture->invalidated) throw CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        invalidate(*stream.capture);
        throw CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    break_captures(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
                   [&](const Capture &capture) { return is_waited_for(capture, stream); });
}

// Returns the graph under construction. Throws if the capture is broken, or if the graph is the program's own and
// destroyed.
static Graph *graph_of(Capture &capture) {
    Graph *graph = all<Graph>().find(capture.graph);
    if (!graph) invalidate(capture);
    return capture.invalidated ? throw CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : graph;
}

void submit(Stream &stream, CUgraphNodeType type, Work work, std::function<void()> prepare) {
    Capture *capture = stream.capture;
    if (!capture) {
        refuse_if_capturing(stream);
        if (prepare) prepare();
        ++driver().last_ticket;
        work(stream);
        return;
    }
    Graph *graph = graph_of(*capture);
    if (stream.id != capture->origin_id) capture->forks[stream.id] = false;
    add_node(*graph, type, std::move(work)).prepare = std::move(prepare);
}

CUdeviceptr capture_allocation(Stream &stream, const CUmemPoolProps &properties, uint64_t bytes) {
    CUDA_MEM_ALLOC_NODE_PARAMS params{};
    params.poolProps = properties;
    params.poolProps.handleTypes = CU_MEM_HANDLE_TYPE_NONE;
    params.bytesize = bytes;
    add_allocation_node(*graph_of(*stream.capture), params);
    return params.dptr;
}

void capture_free(Stream &stream, CUdeviceptr start) {
    Graph *graph = graph_of(*stream.capture);
    const bool own = std::any_of(graph->nodes.begin(), graph->nodes.end(),
                                 [=](const auto &node) { return node->memory && node->memory->start == start; });
    if (!own && !driver().live_graph_memory.count(start)) throw CUDA_ERROR_INVALID_VALUE;
    add_node(*graph, CU_GRAPH_NODE_TYPE_MEM_FREE).freed = start;
}

namespace {

void leave_capture(const Capture &capture) {
    const auto leave = [&](Stream &stream) {
        if (stream.capture == &capture) stream.capture = nullptr;
    };
    all<Stream>().each(leave);
    all<Context>().each([&](const Context &context) {
        for (const auto &[thread, stream] : context.per_thread_streams) leave(*stream);
    });
}

void begin(CUstream handle, CUgraph graph, CUstreamCaptureMode mode) {
    if (mode < CU_STREAM_CAPTURE_MODE_GLOBAL || mode > CU_STREAM_CAPTURE_MODE_RELAXED) throw CUDA_ERROR_INVALID_VALUE;
    Stream *stream = find_stream(handle);
    if (stream->legacy) throw CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (stream->capture) throw CUDA_ERROR_ILLEGAL_STATE;
    auto capture = std::make_unique<Capture>(Capture{.id = next_handle(),
                                                     .origin_id = stream->id,
                                                     .context = stream->context,
                                                     .mode = mode,
                                                     .thread = this_thread_id(),
                                                     .graph = graph,
                                                     .graph_is_the_callers = graph != nullptr,
                                                     .origin_blocking = !(stream->flags & CU_STREAM_NON_BLOCKING),
                                                     .forks = {}});
    if (!graph) capture->graph = all<Graph>().add(std::make_unique<Graph>())->handle;
    stream->capture = capture.get();
    driver().captures.push_back(std::move(capture));
}

}  // namespace

void abandon(Capture &capture) {
    leave_capture(capture);
    std::erase_if(driver().captures, [&](const auto &one) { return one.get() == &capture; });
}

SIM_CU_STREAM(10000, cuStreamBeginCapture, (CUstream stream), (stream)) {
    begin(stream, nullptr, CU_STREAM_CAPTURE_MODE_GLOBAL);
}
SIM_CU_STREAM(10010, cuStreamBeginCapture_v2, (CUstream stream, CUstreamCaptureMode mode), (stream, mode)) {
    begin(stream, nullptr, mode);
}

SIM_CU_STREAM(12030, cuStreamBeginCaptureToGraph,
              (CUstream stream, CUgraph graph, const CUgraphNode *before, const CUgraphEdgeData *edges, size_t count,
               CUstreamCaptureMode mode),
              (stream, graph, before, edges, count, mode)) {
    all<Graph>().at(graph);
    begin(stream, graph, mode);
}

SIM_CU_STREAM(10000, cuStreamEndCapture, (CUstream handle, CUgraph *graph), (handle, graph)) {
    Stream *stream = find_stream(handle);
    if (!graph) throw CUDA_ERROR_INVALID_VALUE;
    Capture *capture = stream->capture;
    if (!capture) throw CUDA_ERROR_ILLEGAL_STATE;
    if (capture->origin_id != stream->id) throw CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    if (capture->thread != this_thread_id() && capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED) {
        // The call fails but ends the capture: the right thread then finds none (measured on an H200).
        if (!capture->graph_is_the_callers) all<Graph>().remove(capture->graph);
        abandon(*capture);
        throw CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    }
    const auto finish = [&] {
        graph_of(*capture);
        for (const auto &[stream_id, joined] : capture->forks)
            if (!joined) throw CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    };
    const CUresult result = result_of(finish);
    *graph = result ? nullptr : capture->graph;
    if (result && !capture->graph_is_the_callers) all<Graph>().remove(capture->graph);
    abandon(*capture);
    if (result) throw result;
}

static CUstreamCaptureStatus status_of(const Stream &stream) {
    if (!stream.capture) return CU_STREAM_CAPTURE_STATUS_NONE;
    return stream.capture->invalidated ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

// A question about the legacy stream fails while a blocking stream is captured, but does not break the capture
// (cuda.h).
static void refuse_asking_legacy(const Stream &stream) {
    for (const auto &capture : driver().captures)
        if (is_waited_for(*capture, stream)) throw CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
}

SIM_CU_STREAM(10000, cuStreamIsCapturing, (CUstream handle, CUstreamCaptureStatus *status), (handle, status)) {
    Stream *stream = find_stream(handle);
    if (!status) throw CUDA_ERROR_INVALID_VALUE;
    refuse_asking_legacy(*stream);
    *status = status_of(*stream);
}

SIM_CU_STREAM(11030, cuStreamGetCaptureInfo_v2,
              (CUstream handle, CUstreamCaptureStatus *status, uint64_t *id, CUgraph *graph, const CUgraphNode **nodes,
               size_t *count),
              (handle, status, id, graph, nodes, count)) {
    Stream *stream = find_stream(handle);
    if (!status) throw CUDA_ERROR_INVALID_VALUE;
    refuse_asking_legacy(*stream);
    *status = status_of(*stream);
    if (*status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return;
    if (id) *id = stream->capture->id;
    if (graph) *graph = stream->capture->graph;
    if (nodes) *nodes = nullptr;  // dependencies are not modelled
    if (count) *count = 0;
}

SIM_CU(10010, cuThreadExchangeStreamCaptureMode, (CUstreamCaptureMode * mode), (mode)) {
    if (!mode || *mode < CU_STREAM_CAPTURE_MODE_GLOBAL || *mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        throw CUDA_ERROR_INVALID_VALUE;
    std::swap(*mode, this_thread().capture_mode);
}

}  // namespace curb::sim
