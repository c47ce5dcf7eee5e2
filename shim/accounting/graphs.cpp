#include "accounting/graphs.hpp"

#include <algorithm>

#include "base/lifetime.hpp"
#include "policy/values/granule.hpp"
#include "pools/pools.hpp"

namespace curb::shim::graphs {
namespace {

Table<CUgraphExec, Executable> &executables() noexcept { return leaked<Table<CUgraphExec, Executable>>(); }

// The allocations that an executable leaves to the program, by address.
struct Left {
    CUgraphExec by = nullptr;
};
Table<CUdeviceptr, Left> &left() noexcept { return leaked<Table<CUdeviceptr, Left>>(); }

// May throw std::bad_alloc.
void remember_left(CUgraphExec executable, const Memory &memory) {
    for (const CUdeviceptr pointer : memory.unfreed) left().put(pointer, {executable});
}
void forget_left(const Memory &memory) noexcept {
    for (const CUdeviceptr pointer : memory.unfreed) left().take(pointer);
}

// An address range of one device that a graph's node allocates. Allocations that do not live at the same time share
// addresses, and so memory (measured on an H200).
struct Range {
    int device;
    CUdeviceptr first, last;  // last: one past the end
};

void collect(CUgraph graph, std::vector<Range> &ranges, std::vector<CUdeviceptr> &frees) {
    std::size_t count = 0;
    if (ask_twice<&Driver::cuGraphGetNodes>(graph, nullptr, &count) != CUDA_SUCCESS || count == 0) return;
    std::vector<CUgraphNode> nodes(count);
    if (ask_twice<&Driver::cuGraphGetNodes>(graph, nodes.data(), &count) != CUDA_SUCCESS) return;
    nodes.resize(std::min(count, nodes.size()));
    for (CUgraphNode node : nodes) {
        CUgraphNodeType type{};
        const auto succeeds = [](auto call) { return ask_twice(call) == CUDA_SUCCESS; };
        if (!succeeds([&] { return driver().cuGraphNodeGetType(node, &type); })) continue;
        CUgraph inner = nullptr;
        CUdeviceptr freed = 0;
        CUDA_MEM_ALLOC_NODE_PARAMS memory{};
        if (type == CU_GRAPH_NODE_TYPE_GRAPH &&
            succeeds([&] { return driver().cuGraphChildGraphNodeGetGraph(node, &inner); }))
            collect(inner, ranges, frees);
        else if (type == CU_GRAPH_NODE_TYPE_MEM_FREE &&
                 succeeds([&] { return driver().cuGraphMemFreeNodeGetParams(node, &freed); }))
            frees.push_back(freed);
        else if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC &&
                 succeeds([&] { return driver().cuGraphMemAllocNodeGetParams(node, &memory); }) &&
                 memory.poolProps.location.type == CU_MEM_LOCATION_TYPE_DEVICE)
            ranges.push_back({memory.poolProps.location.id, memory.dptr, memory.dptr + memory.bytesize});
    }
}

Needs needs_of(std::vector<Range> ranges) {
    std::sort(ranges.begin(), ranges.end(), [](const Range &a, const Range &b) {
        return a.device != b.device ? a.device < b.device : a.first < b.first;
    });
    Needs needs;
    const Range *before = nullptr;
    CUdeviceptr reached = 0;
    for (const Range &range : ranges) {
        if (!before || before->device != range.device) {
            needs.push_back({devices::find(range.device), 0});
            reached = 0;
        }
        needs.back().bytes += range.last - std::min(range.last, std::max(range.first, reached));
        reached = std::max(reached, range.last);
        before = &range;
    }
    std::erase_if(needs, [](const Need &need) { return !need.device; });
    // Blocks that straddle pool units may take one more unit (measured on an H200: 450 MiB in three blocks took 512).
    for (Need &need : needs) need.bytes = policy::round_up(need.bytes, policy::kPoolUnit) + policy::kPoolUnit;
    return needs;
}

}  // namespace

std::optional<Memory> of(CUgraph graph) noexcept try {
    std::vector<Range> ranges;
    Memory memory;
    collect(graph, ranges, memory.freed);
    // A graph may allocate and free one address several times: each free node ends one allocation.
    for (const Range &range : ranges) {
        const auto found = std::find(memory.freed.begin(), memory.freed.end(), range.first);
        if (found == memory.freed.end())
            memory.unfreed.push_back(range.first);
        else
            memory.freed.erase(found);
    }
    memory.needs = needs_of(std::move(ranges));
    return memory;
} catch (...) {
    return std::nullopt;
}

bool made(CUgraphExec executable, Memory memory) noexcept try {
    if (memory.empty()) return true;
    const auto record = std::make_shared<const Memory>(std::move(memory));
    if (const auto gone = executables().put(executable, {record})) forget_left(*gone->memory);
    remember_left(executable, *record);
    return true;
} catch (...) {
    if (const auto record = executables().take(executable)) forget_left(*record->memory);
    return false;
}

Destroying::Destroying(CUgraphExec executable) noexcept
    : executable_(executable), removal_(executables().remove(executable)) {
    if (removal_) forget_left(*removal_->memory);
}

Destroying::~Destroying() {
    if (removal_) try {
            remember_left(executable_, *removal_->memory);
        } catch (...) {
            // Out of host memory: the graph is charged after its next launch instead of before.
        }
}

void Destroying::done() noexcept {
    if (removal_) removal_.commit();
}

std::optional<Needs> missing(CUgraphExec executable) noexcept try {
    const auto one = executables().find(executable);
    return !one || one->live || one->trims == pools::graph_trims() ? Needs{} : one->memory->needs;
} catch (...) {
    return std::nullopt;
}

void uploaded(CUgraphExec executable, std::uint64_t trims) noexcept {
    executables().change(executable, [=](Executable &one) {
        one.trims = trims;
        return true;
    });
}

void launched(CUgraphExec executable, std::uint64_t trims) noexcept {
    std::shared_ptr<const Memory> memory;
    executables().change(executable, [&](Executable &one) {
        one.trims = trims;
        one.live = !one.memory->unfreed.empty();
        memory = one.memory;
        return true;
    });
    if (memory)
        for (const CUdeviceptr pointer : memory->freed) freed(pointer);
}

void freed(CUdeviceptr pointer) noexcept {
    const auto left_there = left().find(pointer);
    if (!left_there) return;
    const std::uint64_t trims = pools::graph_trims();
    executables().change(left_there->by, [=](Executable &one) {
        one.live = false;
        one.trims = trims;  // the next trim takes it
        return true;
    });
}

}  // namespace curb::shim::graphs
