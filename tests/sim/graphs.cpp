#include "graphs.hpp"

#include <algorithm>
#include <set>

#include "driver.hpp"
#include "modules.hpp"

namespace curb::sim {

namespace {

CUresult find_graph(CUgraph handle, Graph **graph) {
    *graph = driver().graphs.find(handle);
    return *graph ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

std::shared_ptr<GraphNode> find_node(CUgraphNode handle) {
    std::shared_ptr<GraphNode> found;
    driver().graphs.each([&](const Graph &graph) {
        for (const auto &node : graph.nodes)
            if (node->handle == handle) found = node;
    });
    return found;
}

// Addresses of the graph that are free again when the next node runs, and large enough. Nodes run in the order of their
// making.
std::shared_ptr<GraphMemory> freed_before(const Graph &graph, uint64_t bytes, int device) {
    std::map<CUdeviceptr, std::shared_ptr<GraphMemory>> all;
    std::set<CUdeviceptr> free;
    for (const auto &node : graph.nodes) {
        if (node->memory) {
            all[node->memory->start] = node->memory;
            free.erase(node->memory->start);
        } else if (all.count(node->freed)) {
            free.insert(node->freed);
        }
    }
    for (const CUdeviceptr start : free)
        if (all[start]->device == device && all[start]->size >= bytes) return all[start];
    return nullptr;
}

// Memory of a graph has one address, so one executable at a time may live (docs/results/driver.md).
CUresult refuse_second_life(const GraphExec &exec) {
    std::set<const GraphMemory *> taken;
    driver().graph_execs.each([&](const GraphExec &other) {
        for (const auto &node : other.nodes)
            if (node->memory) taken.insert(node->memory.get());
    });
    const bool second = std::any_of(exec.nodes.begin(), exec.nodes.end(),
                                    [&](const auto &node) { return taken.count(node->memory.get()) != 0; });
    return second ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
}

bool has_memory_nodes(const Graph &graph) {
    return std::any_of(graph.nodes.begin(), graph.nodes.end(), [](const auto &node) {
        return node->memory || node->freed || (node->child && has_memory_nodes(*driver().graphs.find(node->child)));
    });
}

// The nodes of a graph and of its children, in the order in which they run.
void collect(const Graph &graph, std::vector<std::shared_ptr<GraphNode>> &nodes) {
    for (const auto &node : graph.nodes)
        node->child ? collect(*driver().graphs.find(node->child), nodes) : nodes.push_back(node);
}

CUresult instantiate(CUgraphExec *exec, CUgraph graph_handle, unsigned long long flags) {
    Graph *graph = nullptr;
    if (!exec) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult error = find_graph(graph_handle, &graph)) return error;
    auto made = std::make_unique<GraphExec>();
    made->flags = flags;
    collect(*graph, made->nodes);
    if (const CUresult error = refuse_second_life(*made)) return error;
    *exec = driver().graph_execs.add(std::move(made))->handle;
    return CUDA_SUCCESS;
}

CUresult launch(GraphExec &exec) {
    for (const auto &node : exec.nodes) {
        if (!node->memory || !driver().live_graph_memory.count(node->memory->start)) continue;
        // Launched before and not freed since.
        if (!(exec.flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH)) return CUDA_ERROR_INVALID_VALUE;
        free_graph_allocation(node->memory->start);
    }
    for (const auto &node : exec.nodes)
        if (node->prepare)
            if (const CUresult error = node->prepare()) return error;
    if (const CUresult error = reserve_for(exec)) return error;
    const std::vector<std::shared_ptr<GraphNode>> nodes = exec.nodes;  // a host node may destroy the executable
    for (const auto &node : nodes) {
        if (node->memory) come_alive(*node);
        if (node->freed && driver().live_graph_memory.count(node->freed)) free_graph_allocation(node->freed);
        if (node->work) node->work();
    }
    return CUDA_SUCCESS;
}

}  // namespace

CUresult add_allocation_node(Graph &graph, CUDA_MEM_ALLOC_NODE_PARAMS &params, CUgraphNode *handle) {
    const CUmemPoolProps &pool = params.poolProps;
    if (!params.bytesize || pool.allocType != CU_MEM_ALLOCATION_TYPE_PINNED || pool.handleTypes ||
        pool.location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    Device *device = nullptr;
    if (const CUresult error = find_device(pool.location.id, &device)) return error;
    if (params.bytesize > kAbsurd) return CUDA_ERROR_OUT_OF_MEMORY;
    const uint64_t bytes = round_up(params.bytesize, kBlockAlignment);
    std::shared_ptr<GraphMemory> memory = freed_before(graph, bytes, device->index);
    if (!memory) {
        memory = std::make_shared<GraphMemory>();
        memory->size = round_up(bytes, kGranule);
        memory->device = device->index;
        memory->start = driver().addresses.take(memory->size, kGranule);
        if (!memory->start) return CUDA_ERROR_OUT_OF_MEMORY;
    }
    memory->bytes = std::max(memory->bytes, bytes);
    params.dptr = memory->start;
    auto node = std::make_shared<GraphNode>();
    *handle = node->handle = make_handle<CUgraphNode>();
    node->type = CU_GRAPH_NODE_TYPE_MEM_ALLOC;
    node->allocation = params;
    node->memory = std::move(memory);
    graph.nodes.push_back(std::move(node));
    return CUDA_SUCCESS;
}

CUgraphNode add_node(Graph &graph, CUgraphNodeType type, std::function<void()> work, CUdeviceptr freed) {
    auto node = std::make_shared<GraphNode>();
    node->handle = make_handle<CUgraphNode>();
    node->type = type;
    node->work = std::move(work);
    node->freed = freed;
    graph.nodes.push_back(node);
    return node->handle;
}

// The graph that a node is to be added to, behind nodes that must be its own.
static CUresult find_graph_of(const CUgraphNode *before, size_t count, CUgraph handle, Graph **graph) {
    if (const CUresult error = find_graph(handle, graph)) return error;
    if (count && !before) return CUDA_ERROR_INVALID_VALUE;
    const auto &nodes = (*graph)->nodes;
    const bool own = std::all_of(before, before + count, [&](CUgraphNode one) {
        return std::any_of(nodes.begin(), nodes.end(), [=](const auto &node) { return node->handle == one; });
    });
    return own ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_CU(cuGraphCreate, (CUgraph * graph, unsigned flags), (graph, flags)) {
    if (!graph || flags) return CUDA_ERROR_INVALID_VALUE;
    *graph = driver().graphs.add(std::make_unique<Graph>())->handle;
    return CUDA_SUCCESS;
}

static void destroy_graph(CUgraph handle) {
    const std::unique_ptr<Graph> graph = driver().graphs.release(handle);
    for (const auto &node : graph->nodes)
        if (node->child) destroy_graph(node->child);
}

SIM_CU(cuGraphDestroy, (CUgraph handle), (handle)) {
    const Graph *graph = driver().graphs.find(handle);
    if (!graph || graph->parent) return CUDA_ERROR_INVALID_VALUE;  // a child ends with its parent
    destroy_graph(handle);
    return CUDA_SUCCESS;
}

SIM_CU(cuGraphAddMemAllocNode,
       (CUgraphNode * node, CUgraph handle, const CUgraphNode *before, size_t count,
        CUDA_MEM_ALLOC_NODE_PARAMS *params),
       (node, handle, before, count, params)) {
    Graph *graph = nullptr;
    if (!node || !params) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult error = find_graph_of(before, count, handle, &graph)) return error;
    return add_allocation_node(*graph, *params, node);
}

SIM_CU(cuGraphAddMemFreeNode,
       (CUgraphNode * node, CUgraph handle, const CUgraphNode *before, size_t count, CUdeviceptr start),
       (node, handle, before, count, start)) {
    Graph *graph = nullptr;
    if (!node || !start) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult error = find_graph_of(before, count, handle, &graph)) return error;
    *node = add_node(*graph, CU_GRAPH_NODE_TYPE_MEM_FREE, {}, start);
    return CUDA_SUCCESS;
}

SIM_CU(cuGraphAddEmptyNode, (CUgraphNode * node, CUgraph handle, const CUgraphNode *before, size_t count),
       (node, handle, before, count)) {
    Graph *graph = nullptr;
    if (!node) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult error = find_graph_of(before, count, handle, &graph)) return error;
    *node = add_node(*graph, CU_GRAPH_NODE_TYPE_EMPTY, {}, 0);
    return CUDA_SUCCESS;
}

static Graph *copy(const Graph &graph) {
    Graph *made = driver().graphs.add(std::make_unique<Graph>());
    for (const auto &original : graph.nodes) {
        const auto &node = made->nodes.emplace_back(std::make_shared<GraphNode>(*original));
        node->handle = make_handle<CUgraphNode>();
        if (!original->child) continue;
        Graph *child = copy(*driver().graphs.find(original->child));
        child->parent = made->handle;
        node->child = child->handle;
    }
    return made;
}

// The graph's own copy of the child, or the child itself: memory nodes cannot be copied (cuda.h,
// CUDA_CHILD_GRAPH_NODE_PARAMS).
static CUresult add_child(Graph &graph, CUgraph handle, CUgraphChildGraphNodeOwnership ownership, CUgraphNode *node) {
    Graph *child = nullptr;
    if (const CUresult error = find_graph(handle, &child)) return error;
    if (child == &graph || child->parent) return CUDA_ERROR_INVALID_VALUE;
    const bool moved = ownership == CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE;
    if (!moved && has_memory_nodes(*child)) return CUDA_ERROR_NOT_SUPPORTED;
    if (!moved) child = copy(*child);
    child->parent = graph.handle;
    *node = add_node(graph, CU_GRAPH_NODE_TYPE_GRAPH, {}, 0);
    graph.nodes.back()->child = child->handle;
    return CUDA_SUCCESS;
}

static CUresult add_any_node(CUgraphNode *node, CUgraph handle, const CUgraphNode *before, size_t count,
                             CUgraphNodeParams *params) {
    Graph *graph = nullptr;
    if (!node || !params) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult error = find_graph_of(before, count, handle, &graph)) return error;
    switch (params->type) {
        case CU_GRAPH_NODE_TYPE_MEM_ALLOC: return add_allocation_node(*graph, params->alloc, node);
        case CU_GRAPH_NODE_TYPE_MEM_FREE:
            if (!params->free.dptr) return CUDA_ERROR_INVALID_VALUE;
            *node = add_node(*graph, params->type, {}, params->free.dptr);
            return CUDA_SUCCESS;
        case CU_GRAPH_NODE_TYPE_EMPTY: *node = add_node(*graph, params->type, {}, 0); return CUDA_SUCCESS;
        case CU_GRAPH_NODE_TYPE_KERNEL: return add_kernel_node(*graph, params->kernel, node);
        case CU_GRAPH_NODE_TYPE_GRAPH: {
            const CUresult error = add_child(*graph, params->graph.graph, params->graph.ownership, node);
            if (!error) params->graph.graph = graph->nodes.back()->child;
            return error;
        }
        default: return CUDA_ERROR_NOT_SUPPORTED;
    }
}

// Of the node types, those that are about memory, kernels, children, and the empty one.
SIM_CU(cuGraphAddNode,
       (CUgraphNode * node, CUgraph graph, const CUgraphNode *before, size_t count, CUgraphNodeParams *params),
       (node, graph, before, count, params)) {
    return add_any_node(node, graph, before, count, params);
}
SIM_CU(cuGraphAddNode_v2,
       (CUgraphNode * node, CUgraph graph, const CUgraphNode *before, [[maybe_unused]] const CUgraphEdgeData *edges,
        size_t count, CUgraphNodeParams *params),
       (node, graph, before, edges, count, params)) {
    return add_any_node(node, graph, before, count, params);
}

SIM_CU(cuGraphAddKernelNode_v2,
       (CUgraphNode * node, CUgraph handle, const CUgraphNode *before, size_t count,
        const CUDA_KERNEL_NODE_PARAMS *params),
       (node, handle, before, count, params)) {
    Graph *graph = nullptr;
    if (!node || !params) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult error = find_graph_of(before, count, handle, &graph)) return error;
    return add_kernel_node(*graph, *params, node);
}

SIM_CU(cuGraphAddChildGraphNode,
       (CUgraphNode * node, CUgraph handle, const CUgraphNode *before, size_t count, CUgraph child),
       (node, handle, before, count, child)) {
    Graph *graph = nullptr;
    if (!node) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult error = find_graph_of(before, count, handle, &graph)) return error;
    return add_child(*graph, child, CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE, node);
}

SIM_CU(cuGraphChildGraphNodeGetGraph, (CUgraphNode handle, CUgraph *graph), (handle, graph)) {
    const auto node = find_node(handle);
    if (!node || !graph || node->type != CU_GRAPH_NODE_TYPE_GRAPH) return CUDA_ERROR_INVALID_VALUE;
    *graph = node->child;
    return CUDA_SUCCESS;
}

SIM_CU(cuGraphGetNodes, (CUgraph handle, CUgraphNode *nodes, size_t *count), (handle, nodes, count)) {
    Graph *graph = nullptr;
    if (!count) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult error = find_graph(handle, &graph)) return error;
    if (nodes)
        for (size_t i = 0; i < *count; ++i) nodes[i] = i < graph->nodes.size() ? graph->nodes[i]->handle : nullptr;
    *count = nodes ? std::min(*count, graph->nodes.size()) : graph->nodes.size();
    return CUDA_SUCCESS;
}

SIM_CU(cuGraphNodeGetType, (CUgraphNode handle, CUgraphNodeType *type), (handle, type)) {
    const auto node = find_node(handle);
    if (!node || !type) return CUDA_ERROR_INVALID_VALUE;
    *type = node->type;
    return CUDA_SUCCESS;
}

SIM_CU(cuGraphMemAllocNodeGetParams, (CUgraphNode handle, CUDA_MEM_ALLOC_NODE_PARAMS *params), (handle, params)) {
    const auto node = find_node(handle);
    if (!node || !params || node->type != CU_GRAPH_NODE_TYPE_MEM_ALLOC) return CUDA_ERROR_INVALID_VALUE;
    *params = node->allocation;
    return CUDA_SUCCESS;
}

SIM_CU(cuGraphMemFreeNodeGetParams, (CUgraphNode handle, CUdeviceptr *start), (handle, start)) {
    const auto node = find_node(handle);
    if (!node || !start || node->type != CU_GRAPH_NODE_TYPE_MEM_FREE) return CUDA_ERROR_INVALID_VALUE;
    *start = node->freed;
    return CUDA_SUCCESS;
}

SIM_CU(cuGraphInstantiateWithFlags, (CUgraphExec * exec, CUgraph graph, unsigned long long flags),
       (exec, graph, flags)) {
    return instantiate(exec, graph, flags);
}

static CUresult instantiate_and_say(CUgraphExec *exec, CUgraph graph, CUgraphNode *at_fault, char *log, size_t room) {
    if (at_fault) *at_fault = nullptr;
    if (log && room) *log = 0;
    return instantiate(exec, graph, 0);
}
SIM_CU(cuGraphInstantiate, (CUgraphExec * exec, CUgraph graph, CUgraphNode *at_fault, char *log, size_t room),
       (exec, graph, at_fault, log, room)) {
    return instantiate_and_say(exec, graph, at_fault, log, room);
}
SIM_CU(cuGraphInstantiate_v2, (CUgraphExec * exec, CUgraph graph, CUgraphNode *at_fault, char *log, size_t room),
       (exec, graph, at_fault, log, room)) {
    return instantiate_and_say(exec, graph, at_fault, log, room);
}

SIM_CU_STREAM(cuGraphInstantiateWithParams, (CUgraphExec * exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params),
              (exec, graph, params)) {
    if (!params) return CUDA_ERROR_INVALID_VALUE;
    const CUresult error = instantiate(exec, graph, params->flags);
    params->result_out = error ? CUDA_GRAPH_INSTANTIATE_ERROR : CUDA_GRAPH_INSTANTIATE_SUCCESS;
    params->hErrNode_out = nullptr;
    if (error || !(params->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD)) return error;
    return reserve_for(*driver().graph_execs.find(*exec));
}

SIM_CU_STREAM(cuGraphUpload, (CUgraphExec handle, CUstream stream_handle), (handle, stream_handle)) {
    Stream *stream = nullptr;
    const GraphExec *exec = driver().graph_execs.find(handle);
    if (!exec) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult error = find_stream(stream_handle, &stream)) return error;
    return reserve_for(*exec);
}

SIM_CU_STREAM(cuGraphLaunch, (CUgraphExec handle, CUstream stream_handle), (handle, stream_handle)) {
    Stream *stream = nullptr;
    GraphExec *exec = driver().graph_execs.find(handle);
    if (!exec) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult error = find_stream(stream_handle, &stream)) return error;
    if (stream->capture) return submit(*stream, CU_GRAPH_NODE_TYPE_GRAPH, [] {});
    return launch(*exec);
}

SIM_CU(cuGraphExecDestroy, (CUgraphExec handle), (handle)) {
    return driver().graph_execs.remove(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace curb::sim
