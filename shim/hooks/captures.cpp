// Stream capture, which a release must know of.
//
// A capture ends by cuStreamEndCapture on the stream that it began in, with that stream, or with its context. A stream
// that was forked into it ends nothing, so each capture is recorded with the stream that it began in.

#include "captures.hpp"

#include <pthread.h>

#include <atomic>
#include <list>
#include <mutex>

#include "busy_count.hpp"
#include "contexts.hpp"
#include "leaked.hpp"
#include "process.hpp"
#include "release/plan.hpp"

namespace curb::shim::captures {
namespace {

// The stream that a capture began in. Equal records are interchangeable: one of them is forgotten at each end.
struct Origin {
    CUstream stream = nullptr;
    pthread_t thread{};           // whose default stream it is, if it is CU_STREAM_PER_THREAD
    CUcontext context = nullptr;  // with which the stream goes
};
using Origins = std::list<Origin>;

// Never destroyed: threads may capture until the process is gone.
struct Books {
    std::mutex mutex;
    Origins origins;
};
Books &books() noexcept { return leaked<Books>(); }

constinit std::atomic<std::size_t> in_progress{0};
constinit BusyCount synchronising;

// The handle of the default stream that a null handle means in the per-thread form.
CUstream of_thread(CUstream stream) noexcept { return stream ? stream : CU_STREAM_PER_THREAD; }

// The record of a capture in this stream. Without a context if the program created the stream.
Origin origin_of(CUstream stream) noexcept {
    return stream == CU_STREAM_PER_THREAD ? Origin{stream, pthread_self(), owner_of_memory()} : Origin{stream, {}, {}};
}

// The context that a stream goes with. Asking it breaks no capture (a case of the contract suite).
CUcontext owner_of(CUstream stream) noexcept {
    CUcontext context = nullptr;
    const auto ask = [&] { return driver().cuStreamGetCtx(stream, &context); };
    return insist(ask) == CUDA_SUCCESS ? contexts::owner_of(context) : owner_of_memory();
}

bool same(const Origin &a, const Origin &b) noexcept {
    const bool is_default = a.stream == CU_STREAM_PER_THREAD;
    return a.stream == b.stream && (!is_default || (a.thread == b.thread && a.context == b.context));
}

void ended(std::size_t captures) noexcept {
    if (captures != 0 && in_progress.fetch_sub(captures) == captures) release::no_capture();
}

// Moves the records that match out of the books, at most so many.
template <class Matches>
Origins taken(Matches matches, std::size_t most = ~std::size_t{0}) noexcept {
    Origins out;
    const std::scoped_lock lock(books().mutex);
    for (auto one = books().origins.begin(); one != books().origins.end() && out.size() < most;) {
        const auto next = std::next(one);
        if (matches(*one)) out.splice(out.end(), books().origins, one);
        one = next;
    }
    return out;
}

void forget(const Origin &origin) noexcept {
    ended(taken([&](const Origin &one) { return same(one, origin); }, 1).size());
}

// Before the driver is called. A synchronisation of ours that has been entered but not yet by the driver would break
// the capture that is about to begin; this waits for that moment to pass, 2 ms at the most (a synchronisation already
// running in the driver does no harm: measured on an H200). False: no host memory for the record.
bool beginning(const Origin &origin) noexcept try {
    {
        const std::scoped_lock lock(books().mutex);
        books().origins.push_back(origin);
    }
    in_progress.fetch_add(1);
    synchronising.wait(2);
    return true;
} catch (...) {
    return false;
}

template <class Begin>
CUresult begin(CUstream stream, Begin call) {
    // No capture can begin in the legacy stream.
    if (!process::active() || !stream || stream == CU_STREAM_LEGACY) return call();
    Origin origin = origin_of(stream);
    if (!origin.context) origin.context = owner_of(stream);
    if (!beginning(origin)) return CUDA_ERROR_OUT_OF_MEMORY;
    const CUresult result = call();
    if (result != CUDA_SUCCESS) forget(origin);
    return result;
}

// An end ends the capture even when it reports it as invalidated, but not when the driver has refused the call; on a
// stream that captures nothing it ends none, also while another thread begins a capture there.
template <class End>
CUresult end(CUstream stream, End call) {
    if (!any() || !process::active()) return call();
    const Origin origin = origin_of(stream);
    const auto &ask = driver().cuStreamIsCapturing;
    const bool before = capturing(ask, stream).value_or(true);
    const CUresult result = call();
    if (before && (result == CUDA_SUCCESS || !capturing(ask, stream).value_or(false))) forget(origin);
    return result;
}

// Captures end with the stream that they began in. They leave the books first: afterwards the driver may give the same
// handle to another thread's stream. They count until the driver has destroyed it.
template <class Destroy>
CUresult destroy(CUstream stream, Destroy call) {
    if (!any() || !process::active()) return call();
    Origins here = taken([=](const Origin &one) { return one.stream == stream; });
    const CUresult result = call();
    if (result == CUDA_SUCCESS) {
        ended(here.size());
    } else {
        const std::scoped_lock lock(books().mutex);
        books().origins.splice(books().origins.end(), here);
    }
    return result;
}

}  // namespace

bool any() noexcept { return in_progress.load() != 0; }

void drop_context(CUcontext context) noexcept {
    if (any()) ended(taken([=](const Origin &one) { return one.context == context; }).size());
}

std::optional<CUresult> synchronise_current_context() noexcept {
    const BusyCount::Guard guard(synchronising);
    if (any()) return std::nullopt;
    Device *device = devices::current();
    const Bytes mark = device ? device->ledger.returned_at_sync.mark() : 0;
    const CUresult result = driver().cuCtxSynchronize();
    if (device && result == CUDA_SUCCESS) device->ledger.returned_at_sync.synchronised(mark);
    return result;
}

}  // namespace curb::shim::captures

using namespace curb::shim;

CUresult cuStreamBeginCapture(CUstream stream) {
    return captures::begin(stream, [&] { return driver().cuStreamBeginCapture(stream); });
}
CUresult cuStreamBeginCapture_ptsz(CUstream stream) {
    return captures::begin(captures::of_thread(stream), [&] { return driver().cuStreamBeginCapture_ptsz(stream); });
}
CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
    return captures::begin(stream, [&] { return driver().cuStreamBeginCapture_v2(stream, mode); });
}
CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode) {
    return captures::begin(captures::of_thread(stream),
                           [&] { return driver().cuStreamBeginCapture_v2_ptsz(stream, mode); });
}
CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *nodes,
                                     const CUgraphEdgeData *edges, size_t count, CUstreamCaptureMode mode) {
    return captures::begin(
        stream, [&] { return driver().cuStreamBeginCaptureToGraph(stream, graph, nodes, edges, count, mode); });
}
CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const CUgraphNode *nodes,
                                          const CUgraphEdgeData *edges, size_t count, CUstreamCaptureMode mode) {
    return captures::begin(captures::of_thread(stream), [&] {
        return driver().cuStreamBeginCaptureToGraph_ptsz(stream, graph, nodes, edges, count, mode);
    });
}
CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) {
    return captures::end(stream, [&] { return driver().cuStreamEndCapture(stream, graph); });
}
CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph) {
    return captures::end(captures::of_thread(stream), [&] { return driver().cuStreamEndCapture_ptsz(stream, graph); });
}
// (A handle of 1 or 2 is a default stream, which stays.)
CUresult cuStreamDestroy(CUstream stream) {
    return captures::destroy(stream, [&] { return driver().cuStreamDestroy(stream); });
}
CUresult cuStreamDestroy_v2(CUstream stream) {
    return captures::destroy(stream, [&] { return driver().cuStreamDestroy_v2(stream); });
}
