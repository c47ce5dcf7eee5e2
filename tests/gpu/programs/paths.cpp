// One way of getting GPU memory, up to the cap and past it: `paths ROW [CUBIN]`. It takes pieces until one is refused
// or it has as many as the row says, keeps them all, shows that the device still works, and gives all of them back. The
// rows are at the end; `paths mixed` walks over all of them together.
//
// The events: "warm" (ready; what is held now is not the pieces'), "full", "freed". A command is awaited after each.

#include <cuda.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "kernels.hpp"
#include "talk.hpp"

namespace {

constexpr std::size_t kKiB = 1 << 10, kMiB = 1 << 20;
constexpr std::size_t kPiece = 256 * kMiB;
constexpr int kPieces = 24;  // beyond a cap of 4 GiB, and few enough to be tried without one

CUdevice device = 0;
CUcontext primary = nullptr;
CUstream stream = nullptr;

void must(CUresult result, const char *call) {
    if (result == CUDA_SUCCESS) return;
    std::fprintf(stderr, "%s returned %d\n", call, int(result));
    std::exit(3);
}
#define MUST_CU(call) must((call), #call)

using GiveBack = std::function<void()>;

// A piece, or the call that was refused.
struct Taken {
    const char *call = nullptr;
    CUresult result = CUDA_SUCCESS;
    std::size_t bytes = 0;
    GiveBack give_back;
};
using Take = std::function<Taken(std::size_t bytes)>;

Taken refused(const char *call, CUresult result) { return {call, result, 0, {}}; }

std::string name_of(CUresult result) {
    const char *name = nullptr;
    return cuGetErrorName(result, &name) == CUDA_SUCCESS && name ? name : std::to_string(int(result));
}

// --- plain memory

Taken plain(std::size_t bytes) {
    CUdeviceptr at = 0;
    if (const CUresult result = cuMemAlloc(&at, bytes)) return refused("cuMemAlloc", result);
    return {nullptr, CUDA_SUCCESS, bytes, [=] { MUST_CU(cuMemFree(at)); }};
}

// Rows of 1,025 bytes: the pitch makes them half as long again.
Taken pitched(std::size_t bytes) {
    CUdeviceptr at = 0;
    std::size_t pitch = 0;
    const std::size_t rows = bytes / 1536 + 1;
    if (const CUresult result = cuMemAllocPitch(&at, &pitch, 1025, rows, 16)) return refused("cuMemAllocPitch", result);
    return {nullptr, CUDA_SUCCESS, pitch * rows, [=] { MUST_CU(cuMemFree(at)); }};
}

Taken managed(std::size_t bytes) {
    CUdeviceptr at = 0;
    if (const CUresult result = cuMemAllocManaged(&at, bytes, CU_MEM_ATTACH_GLOBAL))
        return refused("cuMemAllocManaged", result);
    MUST_CU(cuMemsetD8(at, 1, bytes));  // on the device: that is what takes its memory
    MUST_CU(cuCtxSynchronize());
    return {nullptr, CUDA_SUCCESS, bytes, [=] { MUST_CU(cuMemFree(at)); }};
}

// --- pools

GiveBack free_in_stream(CUdeviceptr at) {
    return [=] {
        MUST_CU(cuMemFreeAsync(at, stream));
        MUST_CU(cuStreamSynchronize(stream));
    };
}

Taken ordered(std::size_t bytes) {
    CUdeviceptr at = 0;
    if (const CUresult result = cuMemAllocAsync(&at, bytes, stream)) return refused("cuMemAllocAsync", result);
    MUST_CU(cuStreamSynchronize(stream));
    return {nullptr, CUDA_SUCCESS, bytes, free_in_stream(at)};
}

CUmemoryPool own_pool() {
    static const CUmemoryPool pool = [] {
        CUmemPoolProps properties{};
        properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
        CUmemoryPool made = nullptr;
        MUST_CU(cuMemPoolCreate(&made, &properties));
        return made;
    }();
    return pool;
}

Taken from_pool(std::size_t bytes) {
    CUdeviceptr at = 0;
    if (const CUresult result = cuMemAllocFromPoolAsync(&at, bytes, own_pool(), stream))
        return refused("cuMemAllocFromPoolAsync", result);
    MUST_CU(cuStreamSynchronize(stream));
    return {nullptr, CUDA_SUCCESS, bytes, free_in_stream(at)};
}

// 3.25 GiB that are free in a pool that keeps everything.
void fill_default_pool() {
    CUmemoryPool pool = nullptr;
    cuuint64_t keep_all = ~cuuint64_t{0};
    MUST_CU(cuDeviceGetDefaultMemPool(&pool, device));
    MUST_CU(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep_all));
    std::vector<GiveBack> pieces;
    for (int i = 0; i < 13; ++i)
        if (Taken taken = ordered(kPiece); taken.give_back) pieces.push_back(std::move(taken.give_back));
    for (const GiveBack &give_back : pieces) give_back();
}

// --- virtual memory

Taken mapped(std::size_t bytes) {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    bytes = (bytes + 2 * kMiB - 1) / (2 * kMiB) * (2 * kMiB);
    CUmemGenericAllocationHandle handle = 0;
    if (const CUresult result = cuMemCreate(&handle, bytes, &properties, 0)) return refused("cuMemCreate", result);
    CUdeviceptr at = 0;
    MUST_CU(cuMemAddressReserve(&at, bytes, 0, 0, 0));
    MUST_CU(cuMemMap(at, bytes, 0, handle, 0));
    MUST_CU(cuMemRelease(handle));  // as ggml and NCCL do: the mapping keeps it
    const CUmemAccessDesc access{properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    MUST_CU(cuMemSetAccess(at, bytes, &access, 1));
    return {nullptr, CUDA_SUCCESS, bytes, [=] {
                MUST_CU(cuMemUnmap(at, bytes));
                MUST_CU(cuMemAddressFree(at, bytes));
            }};
}

// --- arrays

constexpr std::size_t kSide = 8192;  // of four-byte elements: a row is 32 KiB

GiveBack destroy(CUarray array) {
    return [=] { MUST_CU(cuArrayDestroy(array)); };
}

Taken array_of(std::size_t width, std::size_t height) {
    CUDA_ARRAY_DESCRIPTOR shape{};
    shape.Width = width;
    shape.Height = height;
    shape.Format = CU_AD_FORMAT_FLOAT;
    shape.NumChannels = 1;
    CUarray array = nullptr;
    if (const CUresult result = cuArrayCreate(&array, &shape)) return refused("cuArrayCreate", result);
    return {nullptr, CUDA_SUCCESS, width * height * 4, destroy(array)};
}

std::size_t rows_for(std::size_t bytes) { return bytes < 4 * kSide ? 1 : bytes / (4 * kSide); }

Taken array(std::size_t bytes) { return array_of(kSide, rows_for(bytes)); }
Taken small_array(std::size_t) { return array_of(256, 256); }

CUDA_ARRAY3D_DESCRIPTOR shape_3d(std::size_t height, std::size_t depth) {
    CUDA_ARRAY3D_DESCRIPTOR shape{};
    shape.Width = depth ? kSide / 16 : kSide;
    shape.Height = height;
    shape.Depth = depth;
    shape.Format = CU_AD_FORMAT_FLOAT;
    shape.NumChannels = 1;
    return shape;
}

// 512 x 512 elements, as many of these as it takes: 1 MiB each.
Taken array_3d(std::size_t bytes) {
    const CUDA_ARRAY3D_DESCRIPTOR shape = shape_3d(512, bytes < kMiB ? 1 : bytes / kMiB);
    CUarray array = nullptr;
    if (const CUresult result = cuArray3DCreate(&array, &shape)) return refused("cuArray3DCreate", result);
    return {nullptr, CUDA_SUCCESS, shape.Depth * kMiB, destroy(array)};
}

Taken mipmapped(std::size_t bytes, unsigned levels) {
    const CUDA_ARRAY3D_DESCRIPTOR shape = shape_3d(rows_for(bytes), 0);
    CUmipmappedArray array = nullptr;
    if (const CUresult result = cuMipmappedArrayCreate(&array, &shape, levels))
        return refused("cuMipmappedArrayCreate", result);
    std::size_t taken = 0;
    for (unsigned level = 0; level < levels; ++level)
        taken +=
            4 * (shape.Width >> level ? shape.Width >> level : 1) * (shape.Height >> level ? shape.Height >> level : 1);
    return {nullptr, CUDA_SUCCESS, taken, [=] { MUST_CU(cuMipmappedArrayDestroy(array)); }};
}

Taken mipmapped_one_level(std::size_t bytes) { return mipmapped(bytes, 1); }
Taken mipmapped_all_levels(std::size_t bytes) { return mipmapped(bytes, 14); }

// --- graphs

// Takes the graph over. `at` is what its memory node allocates; nothing in it frees that.
Taken launched(CUgraph graph, CUdeviceptr at, std::size_t bytes) {
    CUgraphExec exec = nullptr;
    if (const CUresult result = cuGraphInstantiateWithFlags(&exec, graph, 0)) {
        MUST_CU(cuGraphDestroy(graph));
        return refused("cuGraphInstantiate", result);
    }
    if (const CUresult result = cuGraphLaunch(exec, stream)) {
        MUST_CU(cuGraphExecDestroy(exec));
        MUST_CU(cuGraphDestroy(graph));
        return refused("cuGraphLaunch", result);
    }
    MUST_CU(cuStreamSynchronize(stream));
    return {nullptr, CUDA_SUCCESS, bytes, [=] {
                free_in_stream(at)();
                MUST_CU(cuGraphExecDestroy(exec));
                MUST_CU(cuGraphDestroy(graph));
                MUST_CU(cuDeviceGraphMemTrim(device));
            }};
}

Taken graph_node(std::size_t bytes) {
    CUgraph graph = nullptr;
    CUgraphNode node = nullptr;
    CUDA_MEM_ALLOC_NODE_PARAMS parameters{};
    parameters.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    parameters.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    parameters.bytesize = bytes;
    MUST_CU(cuGraphCreate(&graph, 0));
    if (const CUresult result = cuGraphAddMemAllocNode(&node, graph, nullptr, 0, &parameters)) {
        MUST_CU(cuGraphDestroy(graph));
        return refused("cuGraphAddMemAllocNode", result);
    }
    return launched(graph, parameters.dptr, bytes);
}

Taken captured(std::size_t bytes) {
    CUgraph graph = nullptr;
    CUdeviceptr at = 0;
    MUST_CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    const CUresult result = cuMemAllocAsync(&at, bytes, stream);
    const CUresult ended = cuStreamEndCapture(stream, &graph);
    if (result != CUDA_SUCCESS) {
        if (graph) MUST_CU(cuGraphDestroy(graph));  // the refusal may have ended the capture
        return refused("cuMemAllocAsync, captured", result);
    }
    must(ended, "cuStreamEndCapture");
    return launched(graph, at, bytes);
}

// --- contexts, stacks, code

Taken stack_limit(std::size_t bytes) {
    std::size_t before = 0;
    MUST_CU(cuCtxGetLimit(&before, CU_LIMIT_STACK_SIZE));
    if (const CUresult result = cuCtxSetLimit(CU_LIMIT_STACK_SIZE, bytes)) {
        std::size_t after = 0;
        MUST_CU(cuCtxGetLimit(&after, CU_LIMIT_STACK_SIZE));
        return refused(after == before ? "cuCtxSetLimit" : "cuCtxSetLimit, limit changed all the same", result);
    }
    return {nullptr, CUDA_SUCCESS, 0, [=] { MUST_CU(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, before)); }};
}

CUfunction function_of(const std::string &ptx, const char *name) {
    CUmodule module = nullptr;
    CUfunction function = nullptr;
    MUST_CU(cuModuleLoadData(&module, ptx.c_str()));
    MUST_CU(cuModuleGetFunction(&function, module, name));
    return function;
}

CUresult launch(CUfunction function, CUdeviceptr at, unsigned first, unsigned second = 0) {
    void *arguments[] = {&at, &first, &second};
    return cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, arguments, nullptr);
}

CUdeviceptr scratch = 0;

// The stack grows at the first launch of a kernel that needs more. What it grew by stays until the limit is set again.
Taken local_memory(std::size_t bytes) {
    static const CUfunction frame = function_of(frame_ptx(bytes), "frame");
    if (const CUresult result = launch(frame, scratch, 1, 1)) return refused("cuLaunchKernel", result);
    MUST_CU(cuStreamSynchronize(stream));
    return {nullptr, CUDA_SUCCESS, 0, [=] { MUST_CU(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 1024)); }};
}

Taken context(std::size_t) {
    CUcontext made = nullptr;
#if CUDA_VERSION >= 13000
    const CUresult result = cuCtxCreate(&made, nullptr, 0, device);
#else
    const CUresult result = cuCtxCreate(&made, 0, device);
#endif
    MUST_CU(cuCtxSetCurrent(primary));
    if (result != CUDA_SUCCESS) return refused("cuCtxCreate", result);
    return {nullptr, CUDA_SUCCESS, 0, [=] { MUST_CU(cuCtxDestroy(made)); }};
}

std::string cubin;  // an image of the row's own; else the program's PTX

Taken module_with_global(std::size_t bytes) {
    static std::map<std::size_t, std::string> images;
    std::string &image = images[bytes];
    if (image.empty()) image = cubin.empty() ? global_ptx(bytes / kMiB) : cubin;
    CUmodule module = nullptr;
    if (const CUresult result = cuModuleLoadData(&module, image.data())) return refused("cuModuleLoadData", result);
    return {nullptr, CUDA_SUCCESS, bytes, [=] { MUST_CU(cuModuleUnload(module)); }};
}

Taken library_with_global(std::size_t bytes) {
    static const std::string image = global_ptx(bytes / kMiB);
    CUlibrary library = nullptr;
    if (const CUresult result = cuLibraryLoadData(&library, image.data(), nullptr, nullptr, 0, nullptr, nullptr, 0))
        return refused("cuLibraryLoadData", result);
    CUdeviceptr at = 0;
    std::size_t size = 0;
    if (const CUresult result = cuLibraryGetGlobal(&at, &size, library, "large")) {
        MUST_CU(cuLibraryUnload(library));
        return refused("cuLibraryGetGlobal", result);
    }
    return {nullptr, CUDA_SUCCESS, bytes, [=] { MUST_CU(cuLibraryUnload(library)); }};
}

// --- the rows

struct Row {
    std::size_t bytes;  // of a piece
    int most;           // pieces
    Take take;
};

const std::map<std::string, Row> rows{
    {"plain", {kPiece, kPieces, plain}},
    {"plain-2MiB", {2 * kMiB, 3072, plain}},
    {"plain-1MiB+1", {kMiB + 1, 3072, plain}},
    {"pitch", {kPiece, kPieces, pitched}},
    {"managed", {kPiece, kPieces, managed}},
    {"async", {kPiece, kPieces, ordered}},
    {"pool", {kPiece, kPieces, from_pool}},
    {"reserved", {kPiece, kPieces, plain}},
    {"vmm", {kPiece, kPieces, mapped}},
    {"array", {kPiece, kPieces, array}},
    {"array-3d", {kPiece, kPieces, array_3d}},
    {"array-small", {0, 20000, small_array}},
    {"mipmap-1", {kPiece, kPieces, mipmapped_one_level}},
    {"mipmap-all", {kPiece, kPieces, mipmapped_all_levels}},
    {"graph", {kPiece, kPieces, graph_node}},
    {"graph-captured", {kPiece, kPieces, captured}},
    {"stack-192KiB", {192 * kKiB, 1, stack_limit}},
    {"stack-8KiB", {8 * kKiB, 1, stack_limit}},
    {"local-64KiB", {64 * kKiB, 1, local_memory}},
    {"local-8KiB", {8 * kKiB, 1, local_memory}},
    {"contexts", {0, 12, context}},
    {"module", {kPiece, kPieces, module_with_global}},
    {"module-cubin", {kPiece, kPieces, module_with_global}},
    {"library", {kPiece, kPieces, library_with_global}},
};

// --- whether the device still works

CUfunction mark = nullptr;

// What a memset and a kernel leave in the scratch memory, read back. The simulated driver's kernels leave nothing, so
// what is right is what it gave at the start.
std::vector<unsigned> worked() {
    std::vector<unsigned> words(4);
    if (cuMemsetD8(scratch, 0x5a, 16) != CUDA_SUCCESS || launch(mark, scratch + 8, 43) != CUDA_SUCCESS ||
        cuStreamSynchronize(stream) != CUDA_SUCCESS || cuMemcpyDtoH(words.data(), scratch, 16) != CUDA_SUCCESS)
        return {};
    return words;
}

std::vector<unsigned> at_the_start;
const char *works() { return worked() == at_the_start ? "true" : "false"; }

void start() {
    MUST_CU(cuInit(0));
    MUST_CU(cuDeviceGet(&device, 0));
    MUST_CU(cuDevicePrimaryCtxRetain(&primary, device));
    MUST_CU(cuCtxSetCurrent(primary));
    // Blocking, so that work in it and the null stream's memsets keep their order.
    MUST_CU(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
    MUST_CU(cuMemAlloc(&scratch, kMiB));
    mark = function_of(mark_ptx(), "mark");
    at_the_start = worked();
    if (at_the_start.empty() || at_the_start[0] != 0x5a5a5a5a) must(CUDA_ERROR_UNKNOWN, "the first memset and kernel");
}

void say_and_wait(const std::string &event) {
    std::printf("%s\n", event.c_str());
    std::fflush(stdout);
    wait_for_command();
}

std::string quoted(const std::string &text) { return '"' + text + '"'; }

void go_through(const std::string &name, const Row &row) {
    if (name == "reserved") fill_default_pool();
    std::vector<Taken> pieces;
    Taken last;
    while (int(pieces.size()) < row.most) {
        last = row.take(row.bytes);
        if (last.call) break;
        pieces.push_back(last);
    }
    say_and_wait("{\"event\": \"full\", \"served\": " + std::to_string(pieces.size()) +
                 ", \"tried\": " + std::to_string(pieces.size() + (last.call ? 1 : 0)) +
                 ", \"piece_bytes\": " + std::to_string(pieces.empty() ? 0 : pieces[0].bytes) +
                 ", \"call\": " + quoted(last.call ? last.call : "") +
                 ", \"error\": " + quoted(last.call ? name_of(last.result) : "") + ", \"works\": " + works() + "}");
    for (const Taken &piece : pieces) piece.give_back();
    bool again = true;  // what was served once is served again
    if (!pieces.empty()) {
        const Taken once_more = row.take(row.bytes);
        again = !once_more.call;
        if (again) once_more.give_back();
    }
    say_and_wait(std::string("{\"event\": \"freed\", \"works\": ") + works() +
                 ", \"again\": " + (again ? "true" : "false") + "}");
}

// --- all of them together

struct Weighted {
    const char *name;
    unsigned weight;  // of 1,000
    std::size_t most;
    Take take;
};

const Weighted weighted[] = {
    {"plain", 280, 128 * kMiB, plain},
    {"pitch", 60, 64 * kMiB, pitched},
    {"managed", 20, 16 * kMiB, managed},
    {"async", 180, 128 * kMiB, ordered},
    {"pool", 120, 128 * kMiB, from_pool},
    {"vmm", 130, 128 * kMiB, mapped},
    {"array", 80, 64 * kMiB, array},
    {"array-3d", 30, 64 * kMiB, array_3d},
    {"mipmap-1", 20, 32 * kMiB, mipmapped_one_level},
    {"graph", 35, 64 * kMiB, graph_node},
    {"graph-captured", 35, 64 * kMiB, captured},
    {"module", 6, 8 * kMiB, module_with_global},
    {"contexts", 2, 0, context},
    {"stack", 2, 0, stack_limit},
};
constexpr unsigned kWeights = 1000;
constexpr int kSteps = 20'000;
constexpr std::size_t kMostInAll = 6ULL << 30;  // what it takes where nothing stops it

const Weighted &drawn(unsigned number) {
    number %= kWeights;
    for (const Weighted &path : weighted) {
        if (number < path.weight) return path;
        number -= path.weight;
    }
    return weighted[0];
}

// Takes and gives back at random, in sizes spread evenly over their logarithm. After a refusal it goes on in small
// sizes for a while, so that it stays near the cap instead of bouncing off it. The same steps in every run that is
// served alike.
void walk() {
    std::mt19937 random(20261121);
    std::vector<Taken> pieces;
    std::map<std::string, long> served, errors;
    std::size_t in_all = 0;
    long refusals = 0, wrong_results = 0;
    int small_for = 0;
    bool stack_taken = false;
    for (int step = 0; step < kSteps; ++step) {
        const unsigned luck = unsigned(random());
        if (!pieces.empty() && (luck % 100 < 42 || in_all > kMostInAll)) {
            const std::size_t which = random() % pieces.size();
            std::swap(pieces[which], pieces.back());
            pieces.back().give_back();
            in_all -= pieces.back().bytes;
            pieces.pop_back();
        } else {
            const Weighted &path = drawn(unsigned(random()));
            const bool stack = !std::strcmp(path.name, "stack");
            std::size_t bytes = (4 * kKiB << random() % 16) + random() % (4 * kKiB);
            if (small_for > 0) bytes %= 4 * kMiB;
            if (path.most && bytes > path.most) bytes = path.most;
            if (!std::strcmp(path.name, "module")) bytes = 8 * kMiB;
            if (stack) bytes = 2048;
            if (stack && stack_taken) continue;
            Taken taken = path.take(bytes ? bytes : 1);
            if (taken.call) {
                ++refusals;
                ++errors[std::string(taken.call) + ": " + name_of(taken.result)];
                small_for = 40;
            } else {
                ++served[path.name];
                if (small_for > 0) --small_for;
                if (stack) {
                    stack_taken = true;
                    taken.give_back = [give_back = taken.give_back, &stack_taken] {
                        give_back();
                        stack_taken = false;
                    };
                }
                in_all += taken.bytes;
                pieces.push_back(std::move(taken));
            }
        }
        if (step % 500 == 0 && worked() != at_the_start) ++wrong_results;
    }
    std::string event = "{\"event\": \"full\", \"steps\": " + std::to_string(kSteps) + ", \"served\": ";
    long all = 0;
    std::string by_path, by_error;
    for (const auto &[path, count] : served) {
        all += count;
        by_path += (by_path.empty() ? "" : ", ") + quoted(path) + ": " + std::to_string(count);
    }
    for (const auto &[error, count] : errors)
        by_error += (by_error.empty() ? "" : ", ") + quoted(error) + ": " + std::to_string(count);
    event += std::to_string(all) + ", \"tried\": " + std::to_string(all + refusals) + ", \"by_path\": {" + by_path +
             "}, \"by_error\": {" + by_error + "}, \"works\": " + (wrong_results ? "false" : works()) + "}";
    say_and_wait(event);
    for (const Taken &piece : pieces) piece.give_back();
    say_and_wait(std::string("{\"event\": \"freed\", \"works\": ") + works() + ", \"again\": true}");
}

}  // namespace

int main(int count, char **words) {
    const std::string name = count > 1 ? words[1] : "";
    if (name != "mixed" && !rows.count(name)) {
        std::fprintf(stderr, "no row is called '%s'\n", name.c_str());
        return 2;
    }
    if (count > 2) {
        std::ifstream file(words[2], std::ios::binary);
        cubin.assign(std::istreambuf_iterator<char>(file), {});
    }
    start();
    say_and_wait("{\"event\": \"warm\"}");
    if (name == "mixed")
        walk();
    else
        go_through(name, rows.at(name));
}
