// The device memory of graphs: a launch takes it, blocks may outlive the launch, and the device keeps it until a trim.
#include <algorithm>
#include <numeric>
#include <set>

#include "driver.hpp"

namespace curb::sim {

namespace {

GraphReserve &reserve_of(int device) { return device_at(device).graph_reserve; }

// Returns the bytes that back an executable's addresses. Blocks that do not live at the same time share theirs.
uint64_t backing(const GraphExec &exec, int device) {
    std::set<const GraphMemory *> distinct;
    for (const auto &node : exec.nodes)
        if (node->memory && node->memory->device == device) distinct.insert(node->memory.get());
    return std::accumulate(distinct.begin(), distinct.end(), uint64_t{0},
                           [](uint64_t sum, const GraphMemory *memory) { return sum + memory->bytes; });
}

}  // namespace

void reserve_for(const GraphExec &exec) {
    for (Device &device : driver().devices) {
        GraphReserve &reserve = device.graph_reserve;
        const uint64_t needed = round_up(reserve.live + backing(exec, device.index), kGraphUnit);
        for (uint64_t more = reserve.used; more < needed; more += kGraphUnit) {
            charge(device.index, Use::graphs, kGraphUnit);
            reserve.reserved += kGraphUnit;
            reserve.reserved_high = std::max(reserve.reserved_high, reserve.reserved);
        }
        reserve.used = std::max(reserve.used, needed);
        reserve.used_high = std::max(reserve.used_high, reserve.used);
    }
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

SIM_CU(11040, cuDeviceGraphMemTrim, (CUdevice device), (device)) {
    GraphReserve &reserve = find_device(device)->graph_reserve;
    reserve.used = round_up(reserve.live, kGraphUnit);
    credit(device, Use::graphs, reserve.reserved - reserve.used);
    reserve.reserved = reserve.used;
}

SIM_CU(11040, cuDeviceGetGraphMemAttribute, (CUdevice device, CUgraphMem_attribute attribute, void *value),
       (device, attribute, value)) {
    const GraphReserve &reserve = find_device(device)->graph_reserve;
    if (!value) throw CUDA_ERROR_INVALID_VALUE;
    uint64_t &figure = *static_cast<uint64_t *>(value);
    switch (attribute) {
        case CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT: figure = reserve.used; return;
        case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH: figure = reserve.used_high; return;
        case CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT: figure = reserve.reserved; return;
        case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH: figure = reserve.reserved_high; return;
    }
    throw CUDA_ERROR_INVALID_VALUE;
}

// Resets a high mark.
SIM_CU(11040, cuDeviceSetGraphMemAttribute, (CUdevice device, CUgraphMem_attribute attribute, void *value),
       (device, attribute, value)) {
    GraphReserve &reserve = find_device(device)->graph_reserve;
    if (!value || *static_cast<uint64_t *>(value)) throw CUDA_ERROR_INVALID_VALUE;
    switch (attribute) {
        case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH: reserve.used_high = reserve.used; return;
        case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH: reserve.reserved_high = reserve.reserved; return;
        default: throw CUDA_ERROR_INVALID_VALUE;
    }
}

}  // namespace curb::sim
