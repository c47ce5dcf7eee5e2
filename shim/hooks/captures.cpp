// Stream capture, which a release must know of.

#include "captures.hpp"

#include <ctime>

#include <atomic>

#include "release/plan.hpp"

namespace curb::shim::captures {
namespace {

constinit std::atomic<int> in_progress{0};
constinit std::atomic<int> synchronising{0};

std::int64_t now_us() noexcept {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1'000'000 + now.tv_nsec / 1000;
}

// Before the driver is called. A synchronisation of ours that has been entered but not yet by the driver would break
// the capture that is about to begin; this waits for that moment to pass, 2 ms at the most (a synchronisation already
// running in the driver does no harm: measured on an H200).
void beginning() noexcept {
    in_progress.fetch_add(1, std::memory_order_seq_cst);
    if (synchronising.load(std::memory_order_seq_cst) == 0) return;
    for (const std::int64_t until = now_us() + 2000; synchronising.load(std::memory_order_seq_cst) && now_us() < until;)
        ;
}

void ended() noexcept {  // or it was not begun: the driver refused
    if (in_progress.fetch_sub(1, std::memory_order_seq_cst) == 1) release::no_capture();
}

template <class Begin>
CUresult begin(Begin call) noexcept {
    beginning();
    const CUresult result = call();
    if (result != CUDA_SUCCESS) ended();
    return result;
}

// An end ends the capture even when it reports it as invalidated, but not when the driver has refused the call; on a
// stream that captures nothing it ends none.
template <class IsCapturing, class End>
CUresult end(const IsCapturing &is_capturing, CUstream stream, End call) noexcept {
    const bool before = capturing(is_capturing, stream).value_or(false);
    const CUresult result = call();
    if (before && (result == CUDA_SUCCESS || !capturing(is_capturing, stream).value_or(false))) ended();
    return result;
}

// A stream that captures ends its capture with itself. One that could not be destroyed is not asked: perhaps it was.
template <class Destroy>
CUresult destroy(CUstream stream, Destroy call) noexcept {
    const bool before = capturing(driver().cuStreamIsCapturing, stream).value_or(false);
    const CUresult result = call();
    if (before && result == CUDA_SUCCESS) ended();
    return result;
}

}  // namespace

bool any() noexcept { return in_progress.load(std::memory_order_seq_cst) > 0; }

std::optional<CUresult> synchronise_current_context() noexcept {
    synchronising.fetch_add(1, std::memory_order_seq_cst);
    std::optional<CUresult> result;
    if (!any()) result = driver().cuCtxSynchronize();
    synchronising.fetch_sub(1, std::memory_order_seq_cst);
    return result;
}

}  // namespace curb::shim::captures

using namespace curb::shim;

CUresult cuStreamBeginCapture(CUstream stream) {
    return captures::begin([&] { return driver().cuStreamBeginCapture(stream); });
}
CUresult cuStreamBeginCapture_ptsz(CUstream stream) {
    return captures::begin([&] { return driver().cuStreamBeginCapture_ptsz(stream); });
}
CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
    return captures::begin([&] { return driver().cuStreamBeginCapture_v2(stream, mode); });
}
CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode) {
    return captures::begin([&] { return driver().cuStreamBeginCapture_v2_ptsz(stream, mode); });
}
CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *nodes,
                                     const CUgraphEdgeData *edges, size_t count, CUstreamCaptureMode mode) {
    return captures::begin(
        [&] { return driver().cuStreamBeginCaptureToGraph(stream, graph, nodes, edges, count, mode); });
}
CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const CUgraphNode *nodes,
                                          const CUgraphEdgeData *edges, size_t count, CUstreamCaptureMode mode) {
    return captures::begin(
        [&] { return driver().cuStreamBeginCaptureToGraph_ptsz(stream, graph, nodes, edges, count, mode); });
}
CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) {
    return captures::end(driver().cuStreamIsCapturing, stream,
                         [&] { return driver().cuStreamEndCapture(stream, graph); });
}
CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph) {
    return captures::end(driver().cuStreamIsCapturing_ptsz, stream,
                         [&] { return driver().cuStreamEndCapture_ptsz(stream, graph); });
}
// (A handle of 1 or 2 is a default stream, which stays.)
CUresult cuStreamDestroy(CUstream stream) {
    return captures::destroy(stream, [&] { return driver().cuStreamDestroy(stream); });
}
CUresult cuStreamDestroy_v2(CUstream stream) {
    return captures::destroy(stream, [&] { return driver().cuStreamDestroy_v2(stream); });
}
