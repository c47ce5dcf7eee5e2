#include "graphs.hpp"

#include <algorithm>
#include <set>

#include "driver.hpp"
#include "modules.hpp"
#include "running.hpp"

namespace curb::sim {

namespace {

const GraphNode &node_at(CUgraphNode handle) {
    const GraphNode *found = nullptr;
    all<Graph>().each([&](const Graph &graph) {
        for (const auto &node : graph.nodes)
            if (node->handle == handle) found = node.get();
    });
    return found ? *found : throw CUDA_ERROR_INVALID_VALUE;
}

// Returns addresses of the graph that are large enough and free when the next node runs; null if there are none. Nodes
// run in the order in which they were added.
std::shared_ptr<GraphMemory> freed_before(const Graph &graph, uint64_t bytes, int device) {
    std::map<CUdeviceptr, std::shared_ptr<GraphMemory>> blocks;
    std::set<CUdeviceptr> free;
    for (const auto &node : graph.nodes) {
        if (node->memory) {
            blocks[node->memory->start] = node->memory;
            free.erase(node->memory->start);
        } else if (blocks.count(node->freed)) {
            free.insert(node->freed);
        }
    }
    for (const CUdeviceptr start : free)
        if (blocks[start]->device == device && blocks[start]->size >= bytes) return blocks[start];
    return nullptr;
}

// Memory of a graph has fixed addresses, so only one executable may have it (docs/results/driver.md).
void refuse_second_life(const GraphExec &exec) {
    std::set<const GraphMemory *> taken;
    all<GraphExec>().each([&](const GraphExec &other) {
        for (const auto &node : other.nodes)
            if (node->memory) taken.insert(node->memory.get());
    });
    for (const auto &node : exec.nodes)
        if (taken.count(node->memory.get())) throw CUDA_ERROR_NOT_SUPPORTED;
}

bool has_memory_nodes(const Graph &graph) {
    return std::any_of(graph.nodes.begin(), graph.nodes.end(), [](const auto &node) {
        return node->memory || node->freed || (node->child && has_memory_nodes(*all<Graph>().find(node->child)));
    });
}

// The nodes of a graph and of its children, in the order in which they run.
void collect(const Graph &graph, std::vector<std::shared_ptr<GraphNode>> &nodes) {
    for (const auto &node : graph.nodes)
        node->child ? collect(*all<Graph>().find(node->child), nodes) : nodes.push_back(node);
}

void instantiate(CUgraphExec *exec, CUgraph graph_handle, unsigned long long flags) {
    if (!exec) throw CUDA_ERROR_INVALID_VALUE;
    Graph *graph = all<Graph>().at(graph_handle);
    auto made = std::make_unique<GraphExec>();
    made->flags = flags;
    collect(*graph, made->nodes);
    refuse_second_life(*made);
    *exec = all<GraphExec>().add(std::move(made))->handle;
}

void launch(GraphExec &exec, Stream &stream) {
    for (const auto &node : exec.nodes) {
        if (!node->memory || !driver().live_graph_memory.count(node->memory->start)) continue;
        // Launched before and not freed since.
        if (!(exec.flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH)) throw CUDA_ERROR_INVALID_VALUE;
        free_graph_allocation(node->memory->start);
    }
    for (const auto &node : exec.nodes)
        if (node->prepare) node->prepare();
    reserve_for(exec);
    for (const auto &node : exec.nodes) {
        if (node->memory) come_alive(*node);
        if (node->freed && driver().live_graph_memory.count(node->freed)) free_graph_allocation(node->freed);
        if (node->work) node->work(stream);
    }
}

}  // namespace

GraphNode &add_allocation_node(Graph &graph, CUDA_MEM_ALLOC_NODE_PARAMS &params) {
    const CUmemPoolProps &pool = params.poolProps;
    if (!params.bytesize || pool.allocType != CU_MEM_ALLOCATION_TYPE_PINNED || pool.handleTypes ||
        pool.location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        throw CUDA_ERROR_INVALID_VALUE;
    Device *device = find_device(pool.location.id);
    if (params.bytesize > kAbsurd) throw CUDA_ERROR_OUT_OF_MEMORY;
    const uint64_t bytes = round_up(params.bytesize, kBlockAlignment);
    std::shared_ptr<GraphMemory> memory = freed_before(graph, bytes, device->index);
    if (!memory) {
        memory = std::make_shared<GraphMemory>();
        memory->size = round_up(bytes, kGranule);
        memory->device = device->index;
        memory->start = driver().addresses.take(memory->size, kGranule);
        if (!memory->start) throw CUDA_ERROR_OUT_OF_MEMORY;
    }
    memory->bytes = std::max(memory->bytes, bytes);
    params.dptr = memory->start;
    GraphNode &node = add_node(graph, CU_GRAPH_NODE_TYPE_MEM_ALLOC);
    node.allocation = params;
    node.memory = std::move(memory);
    return node;
}

GraphNode &add_node(Graph &graph, CUgraphNodeType type, Work work) {
    GraphNode &node = *graph.nodes.emplace_back(std::make_shared<GraphNode>());
    node.handle = make_handle<CUgraphNode>();
    node.type = type;
    node.work = std::move(work);
    return node;
}

// Returns the graph to add a node to. Throws if a node in `before` is not its own.
static Graph &graph_with(const CUgraphNode *before, size_t count, CUgraph handle) {
    Graph *graph = all<Graph>().at(handle);
    if (count && !before) throw CUDA_ERROR_INVALID_VALUE;
    const bool own = std::all_of(before, before + count, [&](CUgraphNode one) {
        return std::any_of(graph->nodes.begin(), graph->nodes.end(),
                           [=](const auto &node) { return node->handle == one; });
    });
    return own ? *graph : throw CUDA_ERROR_INVALID_VALUE;
}

SIM_CU(10000, cuGraphCreate, (CUgraph * graph, unsigned flags), (graph, flags)) {
    if (!graph || flags) throw CUDA_ERROR_INVALID_VALUE;
    *graph = all<Graph>().add(std::make_unique<Graph>())->handle;
}

static void destroy_graph(CUgraph handle) {
    const std::unique_ptr<Graph> graph = all<Graph>().release(handle);
    for (const auto &node : graph->nodes)
        if (node->child) destroy_graph(node->child);
}

SIM_CU(10000, cuGraphDestroy, (CUgraph handle), (handle)) {
    const Graph *graph = all<Graph>().find(handle);
    if (!graph || graph->parent) throw CUDA_ERROR_INVALID_VALUE;  // a child ends with its parent
    destroy_graph(handle);
}

SIM_CU(11040, cuGraphAddMemAllocNode,
       (CUgraphNode * node, CUgraph handle, const CUgraphNode *before, size_t count,
        CUDA_MEM_ALLOC_NODE_PARAMS *params),
       (node, handle, before, count, params)) {
    if (!node || !params) throw CUDA_ERROR_INVALID_VALUE;
    *node = add_allocation_node(graph_with(before, count, handle), *params).handle;
}

static GraphNode &add_free_node(Graph &graph, CUdeviceptr start) {
    if (!start) throw CUDA_ERROR_INVALID_VALUE;
    GraphNode &node = add_node(graph, CU_GRAPH_NODE_TYPE_MEM_FREE);
    node.freed = start;
    return node;
}

SIM_CU(11040, cuGraphAddMemFreeNode,
       (CUgraphNode * node, CUgraph handle, const CUgraphNode *before, size_t count, CUdeviceptr start),
       (node, handle, before, count, start)) {
    if (!node) throw CUDA_ERROR_INVALID_VALUE;
    *node = add_free_node(graph_with(before, count, handle), start).handle;
}

SIM_CU(10000, cuGraphAddEmptyNode, (CUgraphNode * node, CUgraph handle, const CUgraphNode *before, size_t count),
       (node, handle, before, count)) {
    if (!node) throw CUDA_ERROR_INVALID_VALUE;
    *node = add_node(graph_with(before, count, handle), CU_GRAPH_NODE_TYPE_EMPTY).handle;
}

SIM_CU(10000, cuGraphAddHostNode,
       (CUgraphNode * node, CUgraph handle, const CUgraphNode *before, size_t count,
        const CUDA_HOST_NODE_PARAMS *params),
       (node, handle, before, count, params)) {
    if (!node || !params || !params->fn) throw CUDA_ERROR_INVALID_VALUE;
    const auto call = [function = params->fn, argument = params->userData] { function(argument); };
    *node = add_node(graph_with(before, count, handle), CU_GRAPH_NODE_TYPE_HOST, [=](Stream &stream) {
                begin_host_call(stream, call);
            }).handle;
}

static Graph *copy(const Graph &graph) {
    Graph *made = all<Graph>().add(std::make_unique<Graph>());
    for (const auto &original : graph.nodes) {
        const auto &node = made->nodes.emplace_back(std::make_shared<GraphNode>(*original));
        node->handle = make_handle<CUgraphNode>();
        if (!original->child) continue;
        Graph *child = copy(*all<Graph>().find(original->child));
        child->parent = made->handle;
        node->child = child->handle;
    }
    return made;
}

// Adds a copy of the child, or moves the child in: memory nodes cannot be copied (cuda.h,
// CUDA_CHILD_GRAPH_NODE_PARAMS).
static GraphNode &add_child(Graph &graph, CUgraph handle, CUgraphChildGraphNodeOwnership ownership) {
    Graph *child = all<Graph>().at(handle);
    if (child == &graph || child->parent) throw CUDA_ERROR_INVALID_VALUE;
    const bool moved = ownership == CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE;
    if (!moved && has_memory_nodes(*child)) throw CUDA_ERROR_NOT_SUPPORTED;
    if (!moved) child = copy(*child);
    child->parent = graph.handle;
    GraphNode &node = add_node(graph, CU_GRAPH_NODE_TYPE_GRAPH);
    node.child = child->handle;
    return node;
}

static GraphNode &add_any_node(Graph &graph, CUgraphNodeParams &params) {
    switch (params.type) {
        case CU_GRAPH_NODE_TYPE_MEM_ALLOC: return add_allocation_node(graph, params.alloc);
        case CU_GRAPH_NODE_TYPE_MEM_FREE: return add_free_node(graph, params.free.dptr);
        case CU_GRAPH_NODE_TYPE_EMPTY: return add_node(graph, params.type);
        case CU_GRAPH_NODE_TYPE_KERNEL: return add_kernel_node(graph, params.kernel);
        case CU_GRAPH_NODE_TYPE_GRAPH: {
            GraphNode &node = add_child(graph, params.graph.graph, params.graph.ownership);
            params.graph.graph = node.child;
            return node;
        }
        default: throw CUDA_ERROR_NOT_SUPPORTED;
    }
}

// Simulates nodes of memory, kernels and child graphs, and the empty node.
SIM_CU(12020, cuGraphAddNode,
       (CUgraphNode * node, CUgraph graph, const CUgraphNode *before, size_t count, CUgraphNodeParams *params),
       (node, graph, before, count, params)) {
    if (!node || !params) throw CUDA_ERROR_INVALID_VALUE;
    *node = add_any_node(graph_with(before, count, graph), *params).handle;
}
SIM_CU(12030, cuGraphAddNode_v2,
       (CUgraphNode * node, CUgraph graph, const CUgraphNode *before, const CUgraphEdgeData *edges, size_t count,
        CUgraphNodeParams *params),
       (node, graph, before, edges, count, params)) {
    if (!node || !params) throw CUDA_ERROR_INVALID_VALUE;
    *node = add_any_node(graph_with(before, count, graph), *params).handle;
}

SIM_CU(12000, cuGraphAddKernelNode_v2,
       (CUgraphNode * node, CUgraph handle, const CUgraphNode *before, size_t count,
        const CUDA_KERNEL_NODE_PARAMS *params),
       (node, handle, before, count, params)) {
    if (!node || !params) throw CUDA_ERROR_INVALID_VALUE;
    *node = add_kernel_node(graph_with(before, count, handle), *params).handle;
}

SIM_CU(10000, cuGraphAddChildGraphNode,
       (CUgraphNode * node, CUgraph handle, const CUgraphNode *before, size_t count, CUgraph child),
       (node, handle, before, count, child)) {
    if (!node) throw CUDA_ERROR_INVALID_VALUE;
    *node = add_child(graph_with(before, count, handle), child, CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE).handle;
}

SIM_CU(10000, cuGraphChildGraphNodeGetGraph, (CUgraphNode handle, CUgraph *graph), (handle, graph)) {
    const GraphNode &node = node_at(handle);
    if (!graph || node.type != CU_GRAPH_NODE_TYPE_GRAPH) throw CUDA_ERROR_INVALID_VALUE;
    *graph = node.child;
}

SIM_CU(10000, cuGraphGetNodes, (CUgraph handle, CUgraphNode *nodes, size_t *count), (handle, nodes, count)) {
    if (!count) throw CUDA_ERROR_INVALID_VALUE;
    Graph *graph = all<Graph>().at(handle);
    if (nodes)
        for (size_t i = 0; i < *count; ++i) nodes[i] = i < graph->nodes.size() ? graph->nodes[i]->handle : nullptr;
    *count = nodes ? std::min(*count, graph->nodes.size()) : graph->nodes.size();
}

SIM_CU(10000, cuGraphNodeGetType, (CUgraphNode handle, CUgraphNodeType *type), (handle, type)) {
    const GraphNode &node = node_at(handle);
    if (!type) throw CUDA_ERROR_INVALID_VALUE;
    *type = node.type;
}

SIM_CU(11040, cuGraphMemAllocNodeGetParams, (CUgraphNode handle, CUDA_MEM_ALLOC_NODE_PARAMS *params),
       (handle, params)) {
    const GraphNode &node = node_at(handle);
    if (!params || node.type != CU_GRAPH_NODE_TYPE_MEM_ALLOC) throw CUDA_ERROR_INVALID_VALUE;
    *params = node.allocation;
}

SIM_CU(11040, cuGraphMemFreeNodeGetParams, (CUgraphNode handle, CUdeviceptr *start), (handle, start)) {
    const GraphNode &node = node_at(handle);
    if (!start || node.type != CU_GRAPH_NODE_TYPE_MEM_FREE) throw CUDA_ERROR_INVALID_VALUE;
    *start = node.freed;
}

SIM_CU(11040, cuGraphInstantiateWithFlags, (CUgraphExec * exec, CUgraph graph, unsigned long long flags),
       (exec, graph, flags)) {
    instantiate(exec, graph, flags);
}

static void instantiate_and_say(CUgraphExec *exec, CUgraph graph, CUgraphNode *at_fault, char *log, size_t room) {
    if (at_fault) *at_fault = nullptr;
    if (log && room) *log = 0;
    instantiate(exec, graph, 0);
}
SIM_CU(10000, cuGraphInstantiate, (CUgraphExec * exec, CUgraph graph, CUgraphNode *at_fault, char *log, size_t room),
       (exec, graph, at_fault, log, room)) {
    instantiate_and_say(exec, graph, at_fault, log, room);
}
SIM_CU(11000, cuGraphInstantiate_v2, (CUgraphExec * exec, CUgraph graph, CUgraphNode *at_fault, char *log, size_t room),
       (exec, graph, at_fault, log, room)) {
    instantiate_and_say(exec, graph, at_fault, log, room);
}

SIM_CU_STREAM(12000, cuGraphInstantiateWithParams,
              (CUgraphExec * exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params), (exec, graph, params)) {
    if (!params) throw CUDA_ERROR_INVALID_VALUE;
    params->result_out = CUDA_GRAPH_INSTANTIATE_ERROR;
    params->hErrNode_out = nullptr;
    instantiate(exec, graph, params->flags);
    params->result_out = CUDA_GRAPH_INSTANTIATE_SUCCESS;
    if (!(params->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD)) return;
    try {
        reserve_for(*all<GraphExec>().at(*exec));
    } catch (...) {
        all<GraphExec>().release(*exec);
        throw;
    }
}

SIM_CU_STREAM(11010, cuGraphUpload, (CUgraphExec handle, CUstream stream_handle), (handle, stream_handle)) {
    const GraphExec *exec = all<GraphExec>().at(handle);
    find_stream(stream_handle);
    reserve_for(*exec);
}

SIM_CU_STREAM(10000, cuGraphLaunch, (CUgraphExec handle, CUstream stream_handle), (handle, stream_handle)) {
    GraphExec *exec = all<GraphExec>().at(handle);
    Stream *stream = find_stream(stream_handle);
    if (stream->capture) return submit(*stream, CU_GRAPH_NODE_TYPE_GRAPH, [](Stream &) {});
    launch(*exec, *stream);
}

SIM_CU(10000, cuGraphExecDestroy, (CUgraphExec handle), (handle)) { all<GraphExec>().release(handle); }

}  // namespace curb::sim
