// Copies chunks between a GPU and host memory: each thread has two pinned buffers, and copies one by the processor
// while the GPU serves the other. (Pinning the whole takes longer than moving it: 2.3 GiB/s on an H200.) All threads
// use one stream: between several the copy engine loses time (one H200: 36 to 40 GiB/s out with a stream for each
// thread or buffer, 48 with one).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "abi/cuda_abi.h"
#include "move/behind_gate.hpp"
#include "move/host_memory.hpp"
#include "policy/decisions/move.hpp"

namespace curb::shim::move {

struct Copies {
    CUcontext context = nullptr;                    // its device has the memory
    std::vector<CUdeviceptr> addresses;             // of the blocks
    std::vector<std::vector<policy::Part>> chunks;  // chunk i is at host.chunk(i)
    HostMemory host;
};

// Whether a move out copies on.
enum class GoOn : std::uint8_t {
    yes,
    enough,  // what has been copied leaves
    no,      // nothing leaves
};

// Both call the driver behind the gate, on threads of curb's that have ended when they return. The context of the
// copies and of the stream is current. One at a time. May throw std::bad_alloc before they begin.

// Returns how many chunks it has copied, from the first one on. That is not all of them if host memory runs out, or if
// `goes_on`, which it asks now and then, says so. nullopt if a copy fails, or if `goes_on` says no. Calls `copied(i)`
// for each block whose contents are in host memory, in turn, while those after it are copied.
std::optional<std::size_t> copy_out(const Copies &copies, const Stream &stream, unsigned threads,
                                    const std::function<GoOn()> &goes_on,
                                    const std::function<void(std::size_t)> &copied);
// `map(i)` makes block i accessible, in turn for each, while the blocks before it are copied. Stops if it is false.
// Returns true if all has been copied, once the stream has done it.
bool copy_in(const Copies &copies, const Stream &stream, unsigned threads, const std::function<bool(std::size_t)> &map);

}  // namespace curb::shim::move
