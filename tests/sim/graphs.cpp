#include "graphs.hpp"

#include <algorithm>

#include "driver.hpp"

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

GraphReserve &reserve_of(int device) { return driver().devices[static_cast<size_t>(device)].graph_reserve; }

// What the launch will have in use at its highest on the device, on top of what is in use now.
uint64_t peak(const GraphExec &exec, int device) {
    int64_t current = 0, highest = 0;
    std::map<CUdeviceptr, int64_t> sizes;
    for (const auto &[start, memory] : driver().live_graph_memory)
        if (memory->device == device) sizes[start] = static_cast<int64_t>(memory->bytes);
    for (const auto &node : exec.nodes) {
        if (node->memory && node->memory->device == device) {
            sizes[node->memory->start] = static_cast<int64_t>(node->memory->bytes);
            current += sizes[node->memory->start];
            highest = std::max(highest, current);
        } else if (const auto freed = sizes.find(node->freed); node->freed && freed != sizes.end()) {
            current -= freed->second;
        }
    }
    return static_cast<uint64_t>(highest);
}

// Takes the device memory that a launch needs.
CUresult reserve_for(const GraphExec &exec) {
    for (Device &device : driver().devices) {
        GraphReserve &reserve = device.graph_reserve;
        const uint64_t needed = round_up(reserve.used + peak(exec, device.index), kGraphUnit);
        if (needed <= reserve.reserved) continue;
        if (const CUresult error = charge(device.index, Use::graphs, needed - reserve.reserved)) return error;
        reserve.reserved = needed;
        reserve.reserved_high = std::max(reserve.reserved_high, needed);
    }
    return CUDA_SUCCESS;
}

void come_alive(const std::shared_ptr<GraphMemory> &memory) {
    GraphReserve &reserve = reserve_of(memory->device);
    reserve.used += memory->bytes;
    reserve.used_high = std::max(reserve.used_high, reserve.used);
    driver().live_graph_memory[memory->start] = memory;
    add_allocation(
        {.kind = Allocation::Kind::graph, .start = memory->start, .bytes = memory->bytes, .device = memory->device});
}

CUresult instantiate(CUgraphExec *exec, CUgraph graph_handle, unsigned long long flags) {
    Graph *graph = nullptr;
    if (!exec) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult error = find_graph(graph_handle, &graph)) return error;
    auto made = std::make_unique<GraphExec>();
    made->flags = flags;
    made->nodes = graph->nodes;
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
    if (const CUresult error = reserve_for(exec)) return error;
    const std::vector<std::shared_ptr<GraphNode>> nodes = exec.nodes;  // a host node may destroy the executable
    for (const auto &node : nodes) {
        if (node->memory) come_alive(node->memory);
        if (node->freed && driver().live_graph_memory.count(node->freed)) free_graph_allocation(node->freed);
        if (node->work) node->work();
    }
    return CUDA_SUCCESS;
}

}  // namespace

GraphMemory::~GraphMemory() {
    if (start) driver().addresses.give(start, size);
}

void free_graph_allocation(CUdeviceptr start) {
    const auto live = driver().live_graph_memory.find(start);
    const std::shared_ptr<GraphMemory> memory = live->second;
    reserve_of(memory->device).used -= memory->bytes;
    driver().live_graph_memory.erase(live);
    driver().allocations.erase(start);
    drop_contents(memory->start, memory->size);
}

CUresult add_allocation_node(Graph &graph, CUDA_MEM_ALLOC_NODE_PARAMS &params, CUgraphNode *handle) {
    const CUmemPoolProps &pool = params.poolProps;
    if (!params.bytesize || pool.allocType != CU_MEM_ALLOCATION_TYPE_PINNED || pool.handleTypes ||
        pool.location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    Device *device = nullptr;
    if (const CUresult error = find_device(pool.location.id, &device)) return error;
    if (params.bytesize > kAbsurd) return CUDA_ERROR_OUT_OF_MEMORY;
    auto memory = std::make_shared<GraphMemory>();
    memory->bytes = round_up(params.bytesize, kBlockAlignment);
    memory->size = round_up(memory->bytes, kGranule);
    memory->device = device->index;
    memory->start = driver().addresses.take(memory->size, kGranule);
    if (!memory->start) return CUDA_ERROR_OUT_OF_MEMORY;
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

static bool are_nodes_of(const Graph &graph, const CUgraphNode *nodes, size_t count) {
    if (count && !nodes) return false;
    return std::all_of(nodes, nodes + count, [&](CUgraphNode handle) {
        return std::any_of(graph.nodes.begin(), graph.nodes.end(),
                           [=](const auto &node) { return node->handle == handle; });
    });
}

SIM_CU(cuGraphCreate, (CUgraph * graph, unsigned flags), (graph, flags)) {
    if (!graph || flags) return CUDA_ERROR_INVALID_VALUE;
    *graph = driver().graphs.add(std::make_unique<Graph>())->handle;
    return CUDA_SUCCESS;
}

SIM_CU(cuGraphDestroy, (CUgraph handle), (handle)) {
    return driver().graphs.remove(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_CU(cuGraphAddMemAllocNode,
       (CUgraphNode * node, CUgraph handle, const CUgraphNode *before, size_t count,
        CUDA_MEM_ALLOC_NODE_PARAMS *params),
       (node, handle, before, count, params)) {
    Graph *graph = nullptr;
    if (!node || !params) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult error = find_graph(handle, &graph)) return error;
    if (!are_nodes_of(*graph, before, count)) return CUDA_ERROR_INVALID_VALUE;
    return add_allocation_node(*graph, *params, node);
}

SIM_CU(cuGraphAddMemFreeNode,
       (CUgraphNode * node, CUgraph handle, const CUgraphNode *before, size_t count, CUdeviceptr start),
       (node, handle, before, count, start)) {
    Graph *graph = nullptr;
    if (!node || !start) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult error = find_graph(handle, &graph)) return error;
    if (!are_nodes_of(*graph, before, count)) return CUDA_ERROR_INVALID_VALUE;
    *node = add_node(*graph, CU_GRAPH_NODE_TYPE_MEM_FREE, {}, start);
    return CUDA_SUCCESS;
}

SIM_CU(cuGraphAddEmptyNode, (CUgraphNode * node, CUgraph handle, const CUgraphNode *before, size_t count),
       (node, handle, before, count)) {
    Graph *graph = nullptr;
    if (!node) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult error = find_graph(handle, &graph)) return error;
    if (!are_nodes_of(*graph, before, count)) return CUDA_ERROR_INVALID_VALUE;
    *node = add_node(*graph, CU_GRAPH_NODE_TYPE_EMPTY, {}, 0);
    return CUDA_SUCCESS;
}

// Of the node types, those that are about memory, and the empty one.
SIM_CU(cuGraphAddNode_v2,
       (CUgraphNode * node, CUgraph handle, const CUgraphNode *before, [[maybe_unused]] const CUgraphEdgeData *edges,
        size_t count, CUgraphNodeParams *params),
       (node, handle, before, edges, count, params)) {
    Graph *graph = nullptr;
    if (!node || !params) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult error = find_graph(handle, &graph)) return error;
    if (!are_nodes_of(*graph, before, count)) return CUDA_ERROR_INVALID_VALUE;
    switch (params->type) {
        case CU_GRAPH_NODE_TYPE_MEM_ALLOC: return add_allocation_node(*graph, params->alloc, node);
        case CU_GRAPH_NODE_TYPE_MEM_FREE:
            if (!params->free.dptr) return CUDA_ERROR_INVALID_VALUE;
            *node = add_node(*graph, params->type, {}, params->free.dptr);
            return CUDA_SUCCESS;
        case CU_GRAPH_NODE_TYPE_EMPTY: *node = add_node(*graph, params->type, {}, 0); return CUDA_SUCCESS;
        default: return CUDA_ERROR_NOT_SUPPORTED;
    }
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

SIM_CU(cuDeviceGraphMemTrim, (CUdevice device), (device)) {
    Device *found = nullptr;
    if (const CUresult error = find_device(device, &found)) return error;
    GraphReserve &reserve = found->graph_reserve;
    const uint64_t needed = round_up(reserve.used, kGraphUnit);
    credit(device, Use::graphs, reserve.reserved - needed);
    reserve.reserved = needed;
    return CUDA_SUCCESS;
}

SIM_CU(cuDeviceGetGraphMemAttribute, (CUdevice device, CUgraphMem_attribute attribute, void *value),
       (device, attribute, value)) {
    Device *found = nullptr;
    if (const CUresult error = find_device(device, &found)) return error;
    if (!value) return CUDA_ERROR_INVALID_VALUE;
    const GraphReserve &reserve = found->graph_reserve;
    uint64_t &figure = *static_cast<uint64_t *>(value);
    switch (attribute) {
        case CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT: figure = reserve.used; return CUDA_SUCCESS;
        case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH: figure = reserve.used_high; return CUDA_SUCCESS;
        case CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT: figure = reserve.reserved; return CUDA_SUCCESS;
        case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH: figure = reserve.reserved_high; return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_VALUE;
}

SIM_CU(cuDeviceSetGraphMemAttribute, (CUdevice device, CUgraphMem_attribute attribute, void *value),
       (device, attribute, value)) {
    Device *found = nullptr;
    if (const CUresult error = find_device(device, &found)) return error;
    if (!value || *static_cast<uint64_t *>(value)) return CUDA_ERROR_INVALID_VALUE;  // high marks, to be reset
    GraphReserve &reserve = found->graph_reserve;
    switch (attribute) {
        case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH: reserve.used_high = reserve.used; return CUDA_SUCCESS;
        case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH: reserve.reserved_high = reserve.reserved; return CUDA_SUCCESS;
        default: return CUDA_ERROR_INVALID_VALUE;
    }
}

}  // namespace curb::sim
