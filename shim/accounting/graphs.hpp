// Records executable graphs with allocation nodes, and the memory that a launch of each may take.
//
// The driver allocates a graph's memory at its upload or first launch. It keeps the memory, for all graphs of the
// device, until a trim. Thread-safe. Holds no lock while calling the driver.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/table.hpp"
#include "device/devices.hpp"

namespace curb::shim::graphs {

struct Need {
    Device *device = nullptr;
    Bytes bytes = 0;
};
using Needs = std::vector<Need>;

// The allocations and frees of a graph and its child graphs.
struct Memory {
    Needs needs;                       // the peak bytes of its allocations on each device
    std::vector<CUdeviceptr> unfreed;  // allocations that it does not free; the program must
    std::vector<CUdeviceptr> freed;    // pointers that it frees and did not allocate
    [[nodiscard]] bool empty() const noexcept { return needs.empty() && freed.empty(); }
};
// Reads them from the graph. nullopt if host memory is exhausted. Calls the driver.
std::optional<Memory> of(CUgraph graph) noexcept;

// Records a new executable. False if host memory is exhausted: destroy the executable again.
bool made(CUgraphExec executable, Memory memory) noexcept;
struct Executable {
    std::shared_ptr<const Memory> memory;
    std::uint64_t trims = ~std::uint64_t{0};  // graph_trims() when it got its memory; ~0: never
    bool live = false;                        // the program has not freed the memory that the last launch left to it
};
// Guards the driver call that destroys an executable. Removes its record before, and puts it back unless done() was
// called.
class Destroying : NoCopy {
  public:
    explicit Destroying(CUgraphExec executable) noexcept;
    ~Destroying();
    explicit operator bool() const noexcept { return static_cast<bool>(removal_); }  // false if it was unknown
    // Call it when the driver has destroyed the executable.
    void done() noexcept;

  private:
    CUgraphExec executable_;
    Table<CUgraphExec, Executable>::Removal removal_;
};
// Returns the bytes that a launch may take now. Empty if it takes none or has its memory already. nullopt if host
// memory is exhausted.
std::optional<Needs> missing(CUgraphExec executable) noexcept;
// Record that the executable has its memory after an upload or a launch. `trims`: graph_trims() before that call. A
// trim does not free memory that a launch leaves to the program.
void uploaded(CUgraphExec executable, std::uint64_t trims) noexcept;
void launched(CUgraphExec executable, std::uint64_t trims) noexcept;
// Call it when the program frees a pointer, which may be one that a graph left to it.
void freed(CUdeviceptr pointer) noexcept;

}  // namespace curb::shim::graphs
