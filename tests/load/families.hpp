// The families of memory that a program takes and gives back, each in two functions, for programs that do so at random.
#pragma once

#include <cstdint>
#include <shared_mutex>
#include <span>
#include <vector>

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
    CUmemoryPool pool = nullptr, imported_pool = nullptr;
    CUdeviceptr imported = 0;
    CUmemGenericAllocationHandle second = 0;  // another handle of the same memory
    CUcontext context = nullptr;
    CUgreenCtx green = nullptr;
    CUmodule module = nullptr;
    CUstream stream = nullptr;
};

// What some programs have to do without.
enum class Kind {
    any,
    stream_ordered,  // of a pool, which may grow for a moment although its idle memory would do (decision 0004)
    managed,         // which keeps a process from being suspended
    code,            // whose size curb knows only once it is loaded
    contexts,        // of which few have room
    open_capture,    // which fails when a thread waits for the context, as that call does
};

// What ends a block, beside the program that gives it back.
enum class EndsWith { nothing, its_context, primary_context };

struct Family {
    const char *name;
    unsigned weight;  // how often at random, beside the others
    Kind kind;
    EndsWith ends_with;
    // With the context of the place current. `random` chooses among streams and pools. CUDA_ERROR_OUT_OF_MEMORY: a
    // refusal, after which nothing is held.
    CUresult (*take)(const Place &place, unsigned random, Block &block);
    CUresult (*give)(const Place &place, unsigned random, const Block &block);
};

std::span<const Family> families();
// One of them by its weight.
const Family &family(unsigned random, const std::vector<Kind> &without);

// Held, shared, while a thread captures: no other may wait for the context meanwhile, which would break the capture.
std::shared_mutex &captures();

}  // namespace load
