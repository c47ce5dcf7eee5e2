// The device memory of graphs: what a launch takes, what is live after it, and what is kept until a trim.
#include <algorithm>
#include <numeric>
#include <set>

#include "driver.hpp"

namespace curb::sim {

namespace {

GraphReserve &reserve_of(int device) { return device_at(device).graph_reserve; }

// What backs the addresses of an executable: those of blocks that do not live at the same time are the same.
uint64_t backing(const GraphExec &exec, int device) {
    std::set<const GraphMemory *> distinct;
    for (const auto &node : exec.nodes)
        if (node->memory && node->memory->device == device) distinct.insert(node->memory.get());
    return std::accumulate(distinct.begin(), distinct.end(), uint64_t{0},
                           [](uint64_t sum, const GraphMemory *memory) { return sum + memory->bytes; });
}

}  // namespace

CUresult reserve_for(const GraphExec &exec) {
    for (Device &device : driver().devices) {
        GraphReserve &reserve = device.graph_reserve;
        const uint64_t needed = round_up(reserve.live + backing(exec, device.index), kGraphUnit);
        for (uint64_t more = reserve.used; more < needed; more += kGraphUnit) {
            if (const CUresult error = charge(device.index, Use::graphs, kGraphUnit)) return error;
            reserve.reserved += kGraphUnit;
            reserve.reserved_high = std::max(reserve.reserved_high, reserve.reserved);
        }
        reserve.used = std::max(reserve.used, needed);
        reserve.used_high = std::max(reserve.used_high, reserve.used);
    }
    return CUDA_SUCCESS;
}

void come_alive(const GraphNode &node) {
    const std::shared_ptr<GraphMemory> &memory = node.memory;
    reserve_of(memory->device).live += memory->bytes;
    driver().live_graph_memory[memory->start] = memory;
    add_allocation({.kind = Allocation::Kind::graph,
                    .start = memory->start,
                    .bytes = node.allocation.bytesize,
                    .device = memory->device});
}

GraphMemory::~GraphMemory() {
    if (start) driver().addresses.give(start, size);
}

void free_graph_allocation(CUdeviceptr start) {
    const auto live = driver().live_graph_memory.find(start);
    const std::shared_ptr<GraphMemory> memory = live->second;
    reserve_of(memory->device).live -= memory->bytes;
    driver().live_graph_memory.erase(live);
    driver().allocations.erase(start);
    drop_contents(memory->start, memory->size);
}

SIM_CU(cuDeviceGraphMemTrim, (CUdevice device), (device)) {
    Device *found = nullptr;
    if (const CUresult error = find_device(device, &found)) return error;
    GraphReserve &reserve = found->graph_reserve;
    reserve.used = round_up(reserve.live, kGraphUnit);
    credit(device, Use::graphs, reserve.reserved - reserve.used);
    reserve.reserved = reserve.used;
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
