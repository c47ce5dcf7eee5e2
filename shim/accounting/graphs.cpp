#include "accounting/graphs.hpp"

#include <algorithm>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

#include "base/lifetime.hpp"
#include "policy/values/granule.hpp"
#include "pools/pools.hpp"

namespace curb::shim::graphs {
namespace {

struct Executable {
    Memory memory;
    std::uint64_t trims = ~std::uint64_t{0};  // graph_trims() when it got its memory; ~0: never
    bool live = false;                        // the program has not freed the memory that the last launch left to it
};

struct Registry {
    std::shared_mutex mutex;
    std::unordered_map<CUgraphExec, Executable> executables;
    std::unordered_map<CUdeviceptr, CUgraphExec> left;
};

Registry &registry() noexcept { return leaked<Registry>(); }

constinit std::atomic<bool> any{false};

// Returns the record; null if unknown. The caller holds the lock.
Executable *known(CUgraphExec executable) noexcept {
    const auto found = registry().executables.find(executable);
    return found == registry().executables.end() ? nullptr : &found->second;
}

// The caller holds the lock.
void free_now(CUdeviceptr pointer) noexcept {
    const auto found = registry().left.find(pointer);
    Executable *executable = found == registry().left.end() ? nullptr : known(found->second);
    if (!executable) return;
    executable->live = false;
    executable->trims = pools::graph_trims();  // the next trim takes it
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
    const std::scoped_lock lock(registry().mutex);
    any.store(true, std::memory_order_release);  // under the lock: forget() clears it there
    Executable &record = registry().executables[executable];
    record = Executable{std::move(memory)};
    for (const CUdeviceptr pointer : record.memory.unfreed) registry().left[pointer] = executable;
    return true;
} catch (...) {
    forget(executable);
    return false;
}

std::optional<Memory> forget(CUgraphExec executable) noexcept {
    if (!any.load(std::memory_order_acquire)) return std::nullopt;
    const std::scoped_lock lock(registry().mutex);
    const auto found = registry().executables.find(executable);
    if (found == registry().executables.end()) return std::nullopt;
    for (const CUdeviceptr pointer : found->second.memory.unfreed) registry().left.erase(pointer);
    std::optional<Memory> memory(std::move(found->second.memory));
    registry().executables.erase(found);
    any.store(!registry().executables.empty(), std::memory_order_release);
    return memory;
}

std::optional<Needs> missing(CUgraphExec executable) noexcept try {
    if (!any.load(std::memory_order_acquire)) return Needs{};
    const std::shared_lock lock(registry().mutex);
    const Executable *one = known(executable);
    return !one || one->live || one->trims == pools::graph_trims() ? Needs{} : one->memory.needs;
} catch (...) {
    return std::nullopt;
}

void uploaded(CUgraphExec executable, std::uint64_t trims) noexcept {
    if (!any.load(std::memory_order_acquire)) return;
    const std::scoped_lock lock(registry().mutex);
    if (Executable *one = known(executable)) one->trims = trims;
}

void launched(CUgraphExec executable, std::uint64_t trims) noexcept {
    if (!any.load(std::memory_order_acquire)) return;
    {
        // Repeated launches of a graph usually change nothing: then the shared lock is enough.
        const std::shared_lock lock(registry().mutex);
        const Executable *one = known(executable);
        if (!one) return;
        if (one->memory.freed.empty() && one->trims == trims && one->live == !one->memory.unfreed.empty()) return;
    }
    const std::scoped_lock lock(registry().mutex);
    Executable *one = known(executable);
    if (!one) return;
    one->trims = trims;
    one->live = !one->memory.unfreed.empty();
    for (const CUdeviceptr pointer : one->memory.freed) free_now(pointer);
}

void freed(CUdeviceptr pointer) noexcept {
    if (!any.load(std::memory_order_acquire)) return;
    const std::scoped_lock lock(registry().mutex);
    free_now(pointer);
}

}  // namespace curb::shim::graphs
