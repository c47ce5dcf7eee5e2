// Graphs and their memory, which has addresses from the moment its node is made and takes device memory at the first
// launch; the device keeps it reserved until cuDeviceGraphMemTrim (docs/results/driver.md).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "cuda_abi.h"
#include "machine.hpp"

namespace curb::sim {

// By how much the graph memory of a device grows (docs/results/driver.md).
inline constexpr uint64_t kGraphUnit = 32 * kMiB;

struct GraphReserve {
    uint64_t live = 0;                         // of launched graphs, not freed since
    uint64_t used = 0, used_high = 0;          // what backs the addresses of the graphs' memory
    uint64_t reserved = 0, reserved_high = 0;  // also what a launch that found the device full took before it gave up
};

// The addresses of an allocation node, and of others of its graph whose blocks live after its own. Shared by the nodes,
// the executables made of their graph, and, between a launch and the free, by the driver's table of live ones.
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
    std::function<void()> prepare;        // what a launch takes for it; assumed to be before anything of it runs
    std::function<void()> work;           // what a captured call would have done; run without the lock for HOST
};

struct Graph {
    static constexpr CUresult kUnknown = CUDA_ERROR_INVALID_VALUE;
    CUgraph handle = nullptr;
    CUgraph parent = nullptr;                       // of whose node it is the child
    std::vector<std::shared_ptr<GraphNode>> nodes;  // in an order that respects the dependencies: that of their making
};

struct GraphExec {
    static constexpr CUresult kUnknown = CUDA_ERROR_INVALID_VALUE;
    CUgraphExec handle = nullptr;
    unsigned long long flags = 0;
    std::vector<std::shared_ptr<GraphNode>> nodes;
};

// Fills in `params.dptr`, which is the allocation's address in every launch.
GraphNode &add_allocation_node(Graph &graph, CUDA_MEM_ALLOC_NODE_PARAMS &params);
GraphNode &add_node(Graph &graph, CUgraphNodeType type, std::function<void()> work = {});

// graph_memory.cpp: takes the device memory that a launch needs; an allocation is live from its node on until it is
// freed.
void reserve_for(const GraphExec &exec);
void come_alive(const GraphNode &node);
void free_graph_allocation(CUdeviceptr start);

}  // namespace curb::sim
