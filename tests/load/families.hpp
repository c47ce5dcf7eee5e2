// The families of memory that a program takes and gives back, each in two functions, for programs that do so at random.
#pragma once

#include <cstdint>
#include <optional>

#include "cuda_abi.h"

namespace load {

inline constexpr std::uint64_t kKiB = 1 << 10, kMiB = 1 << 20;

// What a thread uses on one device. Streams and pools that a thread has made end with it, whoever has blocks of them.
struct Place {
    static constexpr int kStreams = 5, kPools = 3;

    int device = 0;
    CUcontext context = nullptr;
    CUstream streams[kStreams] = {};  // the null stream, those of all threads, and the thread's own
    CUmemoryPool pools[kPools] =
        {};  // the default pool, one that keeps everything, and one that some threads have for their own
};

struct Family;
struct Block {
    const Family *family = nullptr;  // none: no block
    int device = 0;
    std::uint64_t bytes = 0;
    CUdeviceptr pointer = 0;
    void *host = nullptr;
    CUmemGenericAllocationHandle handle = 0;
    CUarray array = nullptr;
    CUmipmappedArray mipmap = nullptr;
    CUgraph graph = nullptr;
    CUgraphExec executable = nullptr;
};

// What some programs have to do without.
enum class Kind {
    any,
    stream_ordered,  // of a pool, which may grow for a moment although its idle memory would do (decision 0004)
    managed,         // which keeps a process from being suspended
};

struct Family {
    const char *name;
    unsigned weight;  // how often, beside the others
    Kind kind;
    // With the context of the place current. `random` chooses among streams and pools. CUDA_ERROR_OUT_OF_MEMORY: a
    // refusal, after which nothing is held.
    CUresult (*take)(const Place &place, unsigned random, Block &block);
    CUresult (*give)(const Place &place, unsigned random, const Block &block);
};

// One of them by its weight.
const Family &family(unsigned random, std::optional<Kind> without);

}  // namespace load
