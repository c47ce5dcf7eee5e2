// Graphs and their memory. An allocation node has its address at once and takes device memory at the first launch. The
// device keeps that reserved until cuDeviceGraphMemTrim (docs/results/driver.md).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "abi/cuda_abi.h"
#include "machine.hpp"

namespace curb::sim {

// The step by which a device's graph memory grows (docs/results/driver.md).
inline constexpr uint64_t kGraphUnit = 32 * kMiB;

struct Stream;
using Work = std::function<void(Stream &)>;  // on the stream that it is submitted to

struct GraphReserve {
    uint64_t live = 0;                         // of launched graphs, not freed since
    uint64_t used = 0, used_high = 0;          // backs the addresses of graph memory
    uint64_t reserved = 0, reserved_high = 0;  // also what a launch took before it found the device full
};

// The addresses of an allocation node, which later nodes of its graph may reuse. Shared by the nodes, the executables
// made of their graph and, between a launch and the free, the driver's table of live allocations.
struct GraphMemory {
    ~GraphMemory();
    CUdeviceptr start = 0;
    uint64_t bytes = 0;  // of the largest block
    uint64_t size = 0;   // of the addresses
    int device = 0;
};

struct GraphNode {
    CUgraphNode handle = nullptr;
    CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
    CUDA_MEM_ALLOC_NODE_PARAMS allocation{};
    std::shared_ptr<GraphMemory> memory;  // MEM_ALLOC
    CUdeviceptr freed = 0;                // MEM_FREE
    CUgraph child = nullptr;              // GRAPH
    std::function<void()> prepare;        // takes its memory at a launch, assumed to be before any node runs
    Work work;                            // what the captured call does
};

struct Graph {
    static constexpr CUresult kUnknown = CUDA_ERROR_INVALID_VALUE;
    CUgraph handle = nullptr;
    CUgraph parent = nullptr;                       // set if it is the child of a node
    std::vector<std::shared_ptr<GraphNode>> nodes;  // in the order of their creation, which respects dependencies
};

struct GraphExec {
    static constexpr CUresult kUnknown = CUDA_ERROR_INVALID_VALUE;
    CUgraphExec handle = nullptr;
    unsigned long long flags = 0;
    std::vector<std::shared_ptr<GraphNode>> nodes;
};

// Fills in `params.dptr`, which is the allocation's address in every launch.
GraphNode &add_allocation_node(Graph &graph, CUDA_MEM_ALLOC_NODE_PARAMS &params);
GraphNode &add_node(Graph &graph, CUgraphNodeType type, Work work = {});

// graph_memory.cpp. Takes the device memory that a launch needs.
void reserve_for(const GraphExec &exec);
// Makes the node's allocation live until it is freed.
void come_alive(const GraphNode &node);
void free_graph_allocation(CUdeviceptr start);

}  // namespace curb::sim
