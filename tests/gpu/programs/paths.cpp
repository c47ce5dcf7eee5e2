// Fills the cap by one path to GPU memory: `paths ROW [CUBIN]`. Allocates pieces until one is refused or it has as many
// as the row says, keeps them all, checks that the device still works, and frees them. A row is a family
// (tests/families) with a size: one of all_rows(), or just the name of a family, for pieces of 256 MiB. `paths mixed`
// allocates and frees pieces of all families at random.
//
// Prints the events "warm" (ready, no piece yet), "full" and "freed", and waits for a command after each.
#include <algorithm>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "families.hpp"
#include "kernels.hpp"
#include "talk.hpp"

namespace {

using families::Block;
using families::Family;
using families::kKiB, families::kMiB;
using families::Trait;

constexpr std::size_t kPiece = 256 * kMiB;
constexpr unsigned kPieces = 24;  // beyond a cap of 4 GiB, and few enough to be tried without one

#define MUST_CU(call) MUST(call, CUDA_SUCCESS)

std::string name_of(CUresult result) {
    const char *name = nullptr;
    return cuGetErrorName(result, &name) == CUDA_SUCCESS && name ? name : std::to_string(int(result));
}

// Keeps the name of the first call that failed since `failed` was cleared.
class FirstFailure final : public families::Calls {
  public:
    CUresult make(const char *name, void *linked, const std::function<CUresult(void *)> &call) override {
        const CUresult result = call(linked);
        if (result != CUDA_SUCCESS && failed.empty()) failed = name;
        return result;
    }
    std::string failed;
};

FirstFailure calls;
families::Place place;
// Chooses the stream that is not the null stream and the pool of the program's own, and destroys a pool after its
// block: the other order makes driver 580 crash later, without curb too (docs/results/driver.md).
constexpr unsigned kOwn = 22;
const families::Use own{calls, place, kOwn};

CUresult take(const Family &family, std::size_t bytes, Block &block) {
    block = {.family = &family, .bytes = bytes};
    calls.failed.clear();
    if (const CUresult result = family.take(own, block)) return result;
    if (family.memory.trait == Trait::managed) {  // takes memory of the device only when the device uses it
        MUST_CU(cuMemsetD8_v2(block.pointer, 1, block.bytes));
        MUST_CU(cuCtxSynchronize());
    }
    return cuStreamSynchronize(own.stream());
}
void give(const Block &block) {
    MUST_CU(block.family->give(own, block));
    MUST_CU(cuStreamSynchronize(own.stream()));
}

// --- families that differ from those of tests/families only on a GPU

CUresult take_mipmap_of_all_levels(const families::Use &use, Block &block) {
    constexpr std::size_t kSide = 8192;
    const CUDA_ARRAY3D_DESCRIPTOR shape{kSide, block.bytes / (4 * kSide), 0, CU_AD_FORMAT_FLOAT, 1, 0};
    block.bytes += block.bytes / 3;
    return CU(cuMipmappedArrayCreate, &block.mipmap, &shape, 14);
}
CUresult give_mipmap(const families::Use &use, const Block &block) { return CU(cuMipmappedArrayDestroy, block.mipmap); }

std::string cubin;
CUresult take_cubin(const families::Use &use, Block &block) {
    return CU(cuModuleLoadData, &block.module, cubin.data());
}
CUresult unload(const families::Use &use, const Block &block) { return CU(cuModuleUnload, block.module); }

constexpr Family kMipmapOfAllLevels{"mipmap_of_all_levels", "", {}, 0, take_mipmap_of_all_levels, give_mipmap};
constexpr Family kCubin{"cubin", "", {}, 0, take_cubin, unload};

// --- the rows

struct Row {
    const Family *family;
    std::size_t bytes;  // of a piece
    unsigned most;      // pieces
};

// Returns the bytes of stacks of this size for all threads that fit on the device.
std::size_t stacks(std::size_t each) {
    int processors = 0;
    MUST_CU(cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, place.device));
    return (each - kKiB) * 2048 * static_cast<std::size_t>(processors);
}

std::map<std::string, Row> all_rows() {
    const auto of = [](const char *family) { return families::find(family); };
    std::map<std::string, Row> rows = {
        {"plain-2MiB", {of("plain"), 2 * kMiB, 3072}},
        {"plain-1MiB+1", {of("plain"), kMiB + 1, 3072}},
        {"reserved", {of("plain"), kPiece, kPieces}},
        {"vmm", {of("mapping_alone"), kPiece, kPieces}},
        {"array-3d", {of("cube"), kPiece, kPieces}},
        {"array-small", {of("array"), 256 * kKiB, 20000}},
        {"mipmap-1", {of("mipmap"), kPiece, kPieces}},
        {"mipmap-all", {&kMipmapOfAllLevels, kPiece, kPieces}},
        {"graph-captured", {of("graph_captured"), kPiece, kPieces}},
        {"stack-192KiB", {of("stack"), stacks(192 * kKiB), 1}},
        {"stack-8KiB", {of("stack"), stacks(8 * kKiB), 1}},
        {"local-64KiB", {of("launched_kernel"), stacks(64 * kKiB), 1}},
        {"local-8KiB", {of("launched_kernel"), stacks(8 * kKiB), 1}},
        {"contexts", {of("context"), 1, 12}},
        {"module-cubin", {&kCubin, kPiece, kPieces}},
    };
    for (const Family &family : families::families()) rows.try_emplace(family.name, Row{&family, kPiece, kPieces});
    return rows;
}

// Leaves 3.25 GiB unused in a pool that keeps everything.
void fill_default_pool() {
    std::uint64_t keep_all = ~std::uint64_t{0};
    MUST_CU(cuMemPoolSetAttribute(place.pools[0], CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep_all));
    std::vector<Block> pieces;
    Block piece;
    for (int i = 0; i < 13; ++i)
        if (take(*families::find("async"), kPiece, piece) == CUDA_SUCCESS) pieces.push_back(piece);
    for (const Block &one : pieces) give(one);
}

// --- whether the device still works

CUdeviceptr scratch = 0;
CUfunction mark = nullptr;

// Runs a memset and a kernel on the scratch memory and returns its words. Empty: a call failed. Kernels of the
// simulated driver write nothing, so the right words are those of the first run.
std::vector<unsigned> worked() {
    std::vector<unsigned> words(4);
    CUdeviceptr at = scratch + 8;
    unsigned value = 43;
    void *arguments[] = {&at, &value};
    if (cuMemsetD8_v2(scratch, 0x5a, 16) != CUDA_SUCCESS ||
        cuLaunchKernel(mark, 1, 1, 1, 1, 1, 1, 0, own.stream(), arguments, nullptr) != CUDA_SUCCESS ||
        cuStreamSynchronize(own.stream()) != CUDA_SUCCESS || cuMemcpyDtoH_v2(words.data(), scratch, 16) != CUDA_SUCCESS)
        return {};
    return words;
}

std::vector<unsigned> at_the_start;
const char *works() { return worked() == at_the_start ? "true" : "false"; }

void start() {
    CUcontext primary = nullptr;
    CUmodule module = nullptr;
    MUST_CU(cuInit(0));
    MUST_CU(cuDevicePrimaryCtxRetain(&primary, 0));
    MUST_CU(cuCtxSetCurrent(primary));
    place = families::make_place(calls, 0);
    // Blocking, so that work in it and the null stream's memsets keep their order.
    MUST_CU(cuStreamCreate(&place.streams[kOwn % families::Place::kStreams], CU_STREAM_DEFAULT));
    MUST_CU(cuMemAlloc_v2(&scratch, kMiB));
    MUST_CU(cuModuleLoadData(&module, families::mark_ptx().c_str()));
    MUST_CU(cuModuleGetFunction(&mark, module, "mark"));
    at_the_start = worked();
    if (at_the_start.empty() || at_the_start[0] != 0x5a5a5a5a) {
        std::fputs("the first memset or kernel failed\n", stderr);
        std::exit(3);
    }
}

void say_and_wait(const std::string &event) {
    std::printf("%s\n", event.c_str());
    std::fflush(stdout);
    wait_for_command();
}

std::string quoted(const std::string &text) { return '"' + text + '"'; }

void go_through(const std::string &name, const Row &row) {
    if (name == "reserved") fill_default_pool();
    std::vector<Block> pieces;
    Block piece;
    CUresult result = CUDA_SUCCESS;
    while (pieces.size() < row.most && (result = take(*row.family, row.bytes, piece)) == CUDA_SUCCESS)
        pieces.push_back(piece);
    const bool refused = result != CUDA_SUCCESS;
    say_and_wait("{\"event\": \"full\", \"served\": " + std::to_string(pieces.size()) +
                 ", \"tried\": " + std::to_string(pieces.size() + refused) +
                 ", \"piece_bytes\": " + std::to_string(pieces.empty() ? 0 : pieces[0].bytes) +
                 ", \"call\": " + quoted(refused ? calls.failed : "") +
                 ", \"error\": " + quoted(refused ? name_of(result) : "") + ", \"works\": " + works() + "}");
    for (const Block &one : pieces) give(one);
    MUST_CU(cuDeviceGraphMemTrim(place.device));
    MUST_CU(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, kKiB));  // the default; launches have raised the limit
    bool again = true;                                  // a piece that was served once must be served again
    if (!pieces.empty()) {
        again = take(*row.family, row.bytes, piece) == CUDA_SUCCESS;
        if (again) give(piece);
    }
    say_and_wait(std::string("{\"event\": \"freed\", \"works\": ") + works() +
                 ", \"again\": " + (again ? "true" : "false") + "}");
}

// --- all of them together

constexpr int kSteps = 20'000;
constexpr std::size_t kMostInAll = 6ULL << 30;  // it holds no more than this without a cap

// Draws a family by its weight. Contexts are drawn rarely, because they take much time and memory.
const Family &drawn(std::mt19937 &random) {
    for (;;) {
        const Family &one = families::families()[random() % families::families().size()];
        const unsigned weight = one.memory.trait == Trait::context ? 1 : one.weight;
        const bool left_out = one.memory.trait == Trait::open_capture ||
                              one.memory.ends_with == families::EndsWith::primary_context;  // a free leaves some of it
        if (!left_out && random() % 80 < weight) return one;
    }
}

std::size_t size_for(const Family &family, std::size_t bytes) {
    if (family.memory.trait == Trait::code) return 8 * kMiB;  // each size is compiled once
    return std::min(bytes, family.memory.trait == Trait::managed ? 16 * kMiB : 128 * kMiB);
}

// Allocates and frees at random, in sizes spread evenly over their logarithm. After a refusal it requests small sizes
// for a while, so that it stays near the cap. Runs with the same refusals make the same steps.
void walk() {
    std::mt19937 random(20261121);
    std::vector<Block> pieces;
    std::map<std::string, long> served, errors;
    std::size_t in_all = 0, managed = 0, most_managed = 0;  // NVML shows managed memory for no process
    const auto managed_of = [](const Block &piece) {
        return piece.family->memory.trait == Trait::managed ? piece.bytes : 0;
    };
    long wrong_results = 0;
    int small_for = 0;
    for (int step = 0; step < kSteps; ++step) {
        if (!pieces.empty() && (random() % 100 < 42 || in_all > kMostInAll)) {
            std::swap(pieces[random() % pieces.size()], pieces.back());
            give(pieces.back());
            in_all -= pieces.back().bytes;
            managed -= managed_of(pieces.back());
            pieces.pop_back();
        } else {
            const Family &family = drawn(random);
            std::size_t bytes = (4 * kKiB << random() % 16) + random() % (4 * kKiB);
            if (small_for > 0) bytes %= 4 * kMiB;
            Block piece;
            if (const CUresult result = take(family, size_for(family, bytes ? bytes : 1), piece)) {
                ++errors[calls.failed + ": " + name_of(result)];
                small_for = 40;
            } else {
                ++served[family.name];
                small_for = std::max(small_for - 1, 0);
                in_all += piece.bytes;
                managed += managed_of(piece);
                most_managed = std::max(most_managed, managed);
                pieces.push_back(piece);
            }
        }
        if (step % 500 == 0 && worked() != at_the_start) ++wrong_results;
    }
    const auto listed = [](const std::map<std::string, long> &counts, long &all) {
        std::string text;
        for (const auto &[what, count] : counts) {
            all += count;
            text += (text.empty() ? "" : ", ") + quoted(what) + ": " + std::to_string(count);
        }
        return text;
    };
    long all = 0, refusals = 0;
    const std::string by_path = listed(served, all), by_error = listed(errors, refusals);
    say_and_wait("{\"event\": \"full\", \"steps\": " + std::to_string(kSteps) + ", \"served\": " + std::to_string(all) +
                 ", \"tried\": " + std::to_string(all + refusals) + ", \"by_path\": {" + by_path +
                 "}, \"by_error\": {" + by_error + "}, \"most_managed_bytes\": " + std::to_string(most_managed) +
                 ", \"works\": " + (wrong_results ? "false" : works()) + "}");
    for (const Block &piece : pieces) give(piece);
    say_and_wait(std::string("{\"event\": \"freed\", \"works\": ") + works() + ", \"again\": true}");
}

}  // namespace

int main(int count, char **words) {
    const std::string name = count > 1 ? words[1] : "";
    if (count > 2) {
        std::ifstream file(words[2], std::ios::binary);
        cubin.assign(std::istreambuf_iterator<char>(file), {});
    }
    start();
    const std::map<std::string, Row> rows = all_rows();
    if (name != "mixed" && !rows.contains(name)) {
        std::fprintf(stderr, "no row is called '%s'\n", name.c_str());
        return 2;
    }
    say_and_wait("{\"event\": \"warm\"}");
    if (name == "mixed")
        walk();
    else
        go_through(name, rows.at(name));
}
