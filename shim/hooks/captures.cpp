// Begin and end of stream captures.

#include "contexts/captures.hpp"
#include "host/process_state.hpp"

namespace curb::shim {
namespace {

// Returns the stream that a null handle means in the _ptsz functions.
CUstream of_thread(CUstream stream) noexcept { return stream ? stream : CU_STREAM_PER_THREAD; }

template <class Begin>
CUresult begin_capture(CUstream stream, Begin call) {
    // No capture can begin in the legacy stream.
    if (!process::active() || !stream || stream == CU_STREAM_LEGACY) return call();
    captures::Origin origin = captures::origin_of(stream);
    if (!captures::beginning(origin)) return CUDA_ERROR_OUT_OF_MEMORY;
    const CUresult result = call();
    if (result != CUDA_SUCCESS) captures::has_ended(origin);
    return result;
}

// cuStreamEndCapture ends a capture even if it reports it as invalidated, but not if the driver refuses the call. On a
// stream that is not captured it ends none, also while another thread begins a capture there.
template <class End>
CUresult end_capture(CUstream stream, End call) {
    if (!captures::any() || !process::active()) return call();
    const captures::Origin origin = captures::origin_of(stream);
    const auto &ask = driver().cuStreamIsCapturing;
    const bool before = captures::capturing(ask, stream).value_or(true);
    const CUresult result = call();
    if (before && (result == CUDA_SUCCESS || !captures::capturing(ask, stream).value_or(false)))
        captures::has_ended(origin);
    return result;
}

template <class Destroy>
CUresult destroy_stream(CUstream stream, Destroy call) {
    if (!captures::any() || !process::active()) return call();
    captures::Destroying captures(stream);
    const CUresult result = call();
    if (result == CUDA_SUCCESS) captures.done();
    return result;
}

}  // namespace
}  // namespace curb::shim

using namespace curb::shim;

CUresult cuStreamBeginCapture(CUstream stream) {
    return begin_capture(stream, to_driver<&Driver::cuStreamBeginCapture>(stream));
}
CUresult cuStreamBeginCapture_ptsz(CUstream stream) {
    return begin_capture(of_thread(stream), to_driver<&Driver::cuStreamBeginCapture_ptsz>(stream));
}
CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
    return begin_capture(stream, to_driver<&Driver::cuStreamBeginCapture_v2>(stream, mode));
}
CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode) {
    return begin_capture(of_thread(stream), to_driver<&Driver::cuStreamBeginCapture_v2_ptsz>(stream, mode));
}
CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *nodes,
                                     const CUgraphEdgeData *edges, size_t count, CUstreamCaptureMode mode) {
    return begin_capture(stream,
                         to_driver<&Driver::cuStreamBeginCaptureToGraph>(stream, graph, nodes, edges, count, mode));
}
CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const CUgraphNode *nodes,
                                          const CUgraphEdgeData *edges, size_t count, CUstreamCaptureMode mode) {
    return begin_capture(of_thread(stream), to_driver<&Driver::cuStreamBeginCaptureToGraph_ptsz>(stream, graph, nodes,
                                                                                                 edges, count, mode));
}
CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) {
    return end_capture(stream, to_driver<&Driver::cuStreamEndCapture>(stream, graph));
}
CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph) {
    return end_capture(of_thread(stream), to_driver<&Driver::cuStreamEndCapture_ptsz>(stream, graph));
}
CUresult cuStreamDestroy(CUstream stream) {
    return destroy_stream(stream, to_driver<&Driver::cuStreamDestroy>(stream));
}
CUresult cuStreamDestroy_v2(CUstream stream) {
    return destroy_stream(stream, to_driver<&Driver::cuStreamDestroy_v2>(stream));
}
