// Memory of graphs: recorded when a graph is instantiated, charged when it is uploaded or launched.

#include "accounting/graphs.hpp"

#include <memory>
#include <new>
#include <optional>
#include <utility>

#include "admission/admission.hpp"
#include "cache/cache.hpp"
#include "contexts/captures.hpp"
#include "device/activity.hpp"
#include "host/process_state.hpp"
#include "pools/pools.hpp"
#include "trace/trace.hpp"

namespace curb::shim {
namespace {

// One attempt to have `call` allocate the graph's memory. nullopt if the driver was out of memory on any device.
template <class Call>
std::optional<CUresult> take_once(const graphs::Needs &needs, wait_queue::Wait &wait, Call call) {
    // One charge for each device, at most 64. Allocated before anything is reserved.
    const std::unique_ptr<std::optional<Charge>[]> charges(new (std::nothrow) std::optional<Charge>[needs.size()]);
    if (!charges) return CUDA_ERROR_OUT_OF_MEMORY;
    for (std::size_t i = 0; i < needs.size(); ++i) {
        const graphs::Need &need = needs[i];
        if (!admission::reserve(*need.device, Kind::graphs, need.bytes, caller_match::Way::none, wait))
            return CUDA_ERROR_OUT_OF_MEMORY;
        charges[i].emplace(*need.device, Kind::graphs, need.bytes);
    }
    CUresult result = call();
    if (result == CUDA_ERROR_OUT_OF_MEMORY) {
        bool freed = false;
        for (const auto &need : needs) freed |= admission::release_on_the_spot(*need.device);
        if (freed) result = call();
    }
    // Charge the bytes that the device's graphs have reserved, then credit the reservation.
    for (std::size_t i = 0; i < needs.size(); ++i) {
        const graphs::Need &need = needs[i];
        pools::Pool *pool = pools::graphs_of(*need.device);
        const Bytes taken = pool ? pool->raise() : 0;
        charges[i]->keep(0);
        if (result == CUDA_SUCCESS)
            trace::allocated(*need.device, Kind::graphs, 0, need.bytes, taken);
        else
            trace::books(*need.device, Kind::graphs, static_cast<std::int64_t>(taken));
        charges[i].reset();
    }
    return admission::unless_full(result);
}

template <class Call>
CUresult take(const graphs::Needs &needs, Call call) {
    if (needs.empty()) return cache::with_room(call);
    const auto &[device, bytes] = needs.front();
    wait_queue::Wait wait;
    const CUresult result =
        admission::until_served(*device, Kind::graphs, bytes, wait, [&] { return take_once(needs, wait, call); });
    if (result == CUDA_SUCCESS) admission::granted(*device, Kind::graphs, bytes, wait);
    return result;
}

// Calls `call`, which uploads or launches the graph, then `note`. In a captured stream the call only becomes a node of
// the other graph.
template <class IsCapturing, class Note, class Call>
CUresult give_memory(CUgraphExec executable, const IsCapturing &is_capturing, CUstream stream, Note note, Call call) {
    if (!process::active()) return call();
    const std::uint64_t trims = pools::graph_trims();
    const auto missing = graphs::missing(executable);
    if (!missing) return CUDA_ERROR_OUT_OF_MEMORY;
    const graphs::Needs &needs = *missing;
    if (!needs.empty() && captures::capturing(is_capturing, stream).value_or(true)) return call();
    const CUresult result = take(needs, call);
    if (result == CUDA_SUCCESS) note(executable, trims);
    return result;
}

template <class IsCapturing, class Call>
CUresult upload(CUgraphExec executable, const IsCapturing &is_capturing, CUstream stream, Call call) {
    return give_memory(executable, is_capturing, stream, graphs::uploaded, call);
}
template <class IsCapturing, class Call>
CUresult launch(CUgraphExec executable, const IsCapturing &is_capturing, CUstream stream, Call call) {
    activity::note();
    const CUresult result = give_memory(executable, is_capturing, stream, graphs::launched, call);
    cache::note_work();
    return result;
}

// Destroys a graph whose memory curb cannot record, because there is no host memory.
CUresult undo(CUgraphExec *executable) noexcept {
    driver().cuGraphExecDestroy(*executable);
    *executable = nullptr;
    return CUDA_ERROR_OUT_OF_MEMORY;
}

template <class Call>
CUresult instantiate(CUgraphExec *executable, CUgraph graph, Call call) {
    const CUresult result = call();
    if (result != CUDA_SUCCESS || !process::active()) return result;
    auto memory = graphs::of(graph);
    return memory && graphs::made(*executable, std::move(*memory)) ? CUDA_SUCCESS : undo(executable);
}

template <class Call>
CUresult instantiate(CUgraphExec *executable, CUgraph graph, const CUDA_GRAPH_INSTANTIATE_PARAMS *parameters,
                     Call call) {
    if (!parameters || !(parameters->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) || !process::active())
        return instantiate(executable, graph, call);
    auto memory = graphs::of(graph);
    if (!memory) return CUDA_ERROR_OUT_OF_MEMORY;
    const std::uint64_t trims = pools::graph_trims();
    const CUresult result = take(memory->needs, call);
    if (result != CUDA_SUCCESS) return result;
    if (!graphs::made(*executable, std::move(*memory))) return undo(executable);
    graphs::uploaded(*executable, trims);
    return CUDA_SUCCESS;
}

}  // namespace
}  // namespace curb::shim

using namespace curb::shim;

CUresult cuGraphInstantiate(CUgraphExec *executable, CUgraph graph, CUgraphNode *error, char *log, size_t log_bytes) {
    return instantiate(executable, graph,
                       to_driver<&Driver::cuGraphInstantiate>(executable, graph, error, log, log_bytes));
}
CUresult cuGraphInstantiate_v2(CUgraphExec *executable, CUgraph graph, CUgraphNode *error, char *log,
                               size_t log_bytes) {
    return instantiate(executable, graph,
                       to_driver<&Driver::cuGraphInstantiate_v2>(executable, graph, error, log, log_bytes));
}
CUresult cuGraphInstantiateWithFlags(CUgraphExec *executable, CUgraph graph, unsigned long long flags) {
    return instantiate(executable, graph, to_driver<&Driver::cuGraphInstantiateWithFlags>(executable, graph, flags));
}
CUresult cuGraphInstantiateWithParams(CUgraphExec *executable, CUgraph graph,
                                      CUDA_GRAPH_INSTANTIATE_PARAMS *parameters) {
    return instantiate(executable, graph, parameters,
                       to_driver<&Driver::cuGraphInstantiateWithParams>(executable, graph, parameters));
}
CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *executable, CUgraph graph,
                                           CUDA_GRAPH_INSTANTIATE_PARAMS *parameters) {
    return instantiate(executable, graph, parameters,
                       to_driver<&Driver::cuGraphInstantiateWithParams_ptsz>(executable, graph, parameters));
}
CUresult cuGraphUpload(CUgraphExec executable, CUstream stream) {
    return upload(executable, driver().cuStreamIsCapturing, stream,
                  to_driver<&Driver::cuGraphUpload>(executable, stream));
}
CUresult cuGraphUpload_ptsz(CUgraphExec executable, CUstream stream) {
    return upload(executable, driver().cuStreamIsCapturing_ptsz, stream,
                  to_driver<&Driver::cuGraphUpload_ptsz>(executable, stream));
}
CUresult cuGraphLaunch(CUgraphExec executable, CUstream stream) {
    return launch(executable, driver().cuStreamIsCapturing, stream,
                  to_driver<&Driver::cuGraphLaunch>(executable, stream));
}
CUresult cuGraphLaunch_ptsz(CUgraphExec executable, CUstream stream) {
    return launch(executable, driver().cuStreamIsCapturing_ptsz, stream,
                  to_driver<&Driver::cuGraphLaunch_ptsz>(executable, stream));
}
CUresult cuGraphExecDestroy(CUgraphExec executable) {
    if (!process::active()) return driver().cuGraphExecDestroy(executable);
    graphs::Destroying destroying(executable);
    const CUresult result = driver().cuGraphExecDestroy(executable);
    if (result == CUDA_SUCCESS) destroying.done();
    return result;
}
CUresult cuDeviceGraphMemTrim(CUdevice ordinal) {
    const CUresult result = driver().cuDeviceGraphMemTrim(ordinal);
    if (Device *device = result == CUDA_SUCCESS ? devices::find(ordinal) : nullptr) {
        pools::graphs_trimmed();
        pools::reconcile(*device);
    }
    return result;
}
