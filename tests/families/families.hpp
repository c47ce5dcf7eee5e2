// Every way in which a program gets GPU memory and gives it back: one row of kFamilies (families.cpp) each.
//
// These suites loop over the rows, so that a new row has a case in each of them:
//   contract      the driver takes what the row says and gives it back (contract/driver/families_test.cpp)
//   conformance   every look-up of the entry point leads to a capped allocation (contract/conformance/)
//   process       the cap holds and the books are right (process/memory/family_scenarios.cpp), also in a trace
//   fault         the books balance after an error of any call (fault/family_ways.cpp)
//   load          threads, sequences, signals and reloads draw families at random (load/programs/traffic.cpp)
//   lifetime      the family across ends of contexts, resets, forks and caps (load/programs/lifetimes_program.cpp)
//   gpu           up to the cap and past it on a GPU, for the families whose refused call no other path there tries
//                 (gpu/path_probe.py)
//
// A row needs two functions. `take` allocates `block.bytes`, with the context of the place current, and writes the size
// of the object it got to `block.bytes`. It returns CUDA_ERROR_OUT_OF_MEMORY only for a refusal, after which nothing is
// held. `give` frees the block. Both call the driver by CU(function, arguments…), never directly.
#pragma once

#include <cstdint>
#include <functional>
#include <shared_mutex>
#include <span>
#include <string_view>

#include "abi/cuda_abi.h"

namespace families {

using Bytes = std::uint64_t;
inline constexpr Bytes kKiB = 1 << 10, kMiB = 1 << 20;

// How a suite makes the calls of take and give. The base class calls the function that the program is linked with.
class Calls {
  public:
    Calls() = default;
    Calls(const Calls &) = delete;
    Calls &operator=(const Calls &) = delete;
    virtual ~Calls() = default;
    // `linked` is null in a program without the driver. `call` calls the function at an address.
    virtual CUresult make(const char * /*name*/, void *linked, const std::function<CUresult(void *)> &call) {
        return call(linked);
    }
};

// The context, streams and pools that a thread uses on one device.
struct Place {
    static constexpr int kStreams = 5, kPools = 3;

    int device = 0;
    CUcontext context = nullptr;
    CUstream streams[kStreams] = {};  // the null stream, those of all threads, and the thread's own
    CUmemoryPool pools[kPools] = {};  // the default pool, one that keeps everything, and one of the thread's own
};
// Makes a place on the device whose context is current: one stream, and pools if `with_pools`.
Place make_place(Calls &calls, int device, bool with_pools = true);
void end_place(Calls &calls, const Place &place);

struct Family;
struct Block {
    const Family *family = nullptr;  // null: no block
    int device = 0;
    Bytes bytes = 0;
    CUdeviceptr pointer = 0;
    void *host = nullptr;
    CUmemGenericAllocationHandle handle = 0;
    CUarray array = nullptr;
    CUmipmappedArray mipmap = nullptr;
    CUgraph graph = nullptr;
    CUgraphExec executable = nullptr;
    CUmemoryPool pool = nullptr, imported_pool = nullptr;
    CUdeviceptr imported = 0;
    CUmemGenericAllocationHandle second = 0;  // another handle of the same memory
    CUcontext context = nullptr;
    CUgreenCtx green = nullptr;
    CUmodule module = nullptr;
    CUlibrary library = nullptr;
    CUstream stream = nullptr;
};

struct Use {
    Calls &calls;
    const Place &place;
    unsigned random = 0;  // chooses among streams and pools, and between orders of giving back

    [[nodiscard]] CUstream stream() const { return place.streams[random % Place::kStreams]; }
    template <class... Types, class... Args>
    CUresult call(const char *name, CUresult (*linked)(Types...), Args... args) const {
        const auto call = [&](void *function) { return reinterpret_cast<CUresult (*)(Types...)>(function)(args...); };
        return calls.make(name, reinterpret_cast<void *>(linked), std::cref(call));
    }
};

// Calls the driver through the `use` in scope.
#ifdef FAMILIES_WITHOUT_DRIVER
#define CU(function, ...) use.call(#function, static_cast<decltype(&::function)>(nullptr) __VA_OPT__(, ) __VA_ARGS__)
#else
#define CU(function, ...) use.call(#function, &::function __VA_OPT__(, ) __VA_ARGS__)
#endif

// Properties for which some programs leave a family out.
enum class Trait {
    none,
    stream_ordered,  // of a pool, which may grow for a moment although its idle memory would do (decision 0004)
    managed,         // keeps a process from being suspended, and NVML counts it for no process
    code,            // curb knows its size only once it is loaded
    context,         // only a few fit under a cap
    whole_context,   // one setting of a context for all its threads
    open_capture,    // fails when another thread waits for the context
};

// The object whose end frees a block that the program does not free.
enum class EndsWith { nothing, its_context, primary_context };

// The bytes that a block takes of the device.
enum class Takes {
    nothing,
    bytes,       // exactly its bytes
    granules,    // its bytes, rounded up to 2 MiB
    pool_units,  // rounded up to 32 MiB
    measured,    // contexts and code: only a measurement shows it
};

// Properties that several families share.
struct Memory {
    std::string_view kind = {};  // in the books, as "plain"; empty: several kinds, or none
    Takes takes;
    EndsWith ends_with = EndsWith::nothing;
    Trait trait = Trait::none;
    bool shares = false;  // blocks share their memory: only one that is larger than those before takes more
};

struct Family {
    const char *name;
    const char *entry;  // the export that the row is about
    Memory memory;
    unsigned weight;  // how often it is drawn at random, relative to the others
    CUresult (*take)(const Use &use, Block &block);
    CUresult (*give)(const Use &use, const Block &block);
    const char *refuses = nullptr;  // the export that is refused at the cap; null: `entry`

    [[nodiscard]] bool is_refused_by(std::string_view call) const { return call == (refuses ? refuses : entry); }
    // Returns the bytes to request for the nth block (from 0), so that each block takes `piece` bytes more.
    [[nodiscard]] Bytes nth(unsigned n, Bytes piece) const { return memory.shares ? (n + 1) * piece : piece; }
};

std::span<const Family> families();
// Returns null if no family has this name.
const Family *find(std::string_view name);

// Returns the bytes that the device loses by a block of this size; 0 if that is nothing or only measured.
Bytes taken(const Family &family, Bytes bytes);

// A thread holds it shared while it captures: a wait for the context in another thread would break the capture.
std::shared_mutex &captures();

}  // namespace families
