// Executable graphs that allocate: what each takes of which device when its memory is not there yet.
//
// A graph's memory is taken at its upload or first launch and kept, for all graphs of the device, until it is trimmed.
// Thread-safe; no lock is held while the driver is called.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "devices.hpp"

namespace curb::shim::graphs {

struct Need {
    Device *device = nullptr;
    Bytes bytes = 0;
};
using Needs = std::vector<Need>;

// What is in a graph, and in the graphs within it.
struct Memory {
    Needs needs;                     // what its allocations take of each device at the most at one time
    std::vector<CUdeviceptr> left;   // allocations that it leaves to the program
    std::vector<CUdeviceptr> freed;  // what it frees and did not allocate
    [[nodiscard]] bool empty() const noexcept { return needs.empty() && freed.empty(); }
};
// None: no host memory to look.
std::optional<Memory> of(CUgraph graph) noexcept;

// False: no host memory for the record, and the executable must be destroyed again.
bool made(CUgraphExec executable, Memory memory) noexcept;
// Forgets the executable before the driver destroys it. nullopt: not known.
std::optional<Memory> forget(CUgraphExec executable) noexcept;
// What a launch may take now. Empty: nothing, or it has its memory already. None: no host memory to say it.
std::optional<Needs> missing(CUgraphExec executable) noexcept;
// It was uploaded or launched, and has its memory as of the graph trims that had been done before. What a launch leaves
// to the program no trim takes away.
void uploaded(CUgraphExec executable, std::uint64_t trims) noexcept;
void launched(CUgraphExec executable, std::uint64_t trims) noexcept;
// The program frees a pointer that may be what a graph has left to it.
void freed(CUdeviceptr pointer) noexcept;

}  // namespace curb::shim::graphs
