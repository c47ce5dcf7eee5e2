// A program that kill_test.py kills: initialises the driver, and for each byte on its standard input makes a context,
// allocates and frees memory of every family, and destroys the context. With "probe" it makes a context and a block,
// prints the bytes in use as a program sees them, and ends with its input.
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#include "families.hpp"

namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

int probe() {
    CUcontext context = nullptr;
    CUdeviceptr block = 0;
    std::size_t free_bytes = 0, total = 0;
    if (cuInit(0) != CUDA_SUCCESS || cuCtxCreate_v2(&context, 0, 0) != CUDA_SUCCESS) return 2;
    if (cuMemAlloc_v2(&block, 64 * kMiB) != CUDA_SUCCESS || cuMemGetInfo_v2(&free_bytes, &total) != CUDA_SUCCESS)
        return 3;
    std::printf("%zu\n", total - free_bytes);
    std::fflush(stdout);
    char byte = 0;
    return read(0, &byte, 1) == 0 ? 0 : 4;
}

}  // namespace

int main(int argc, char **argv) {
    if (argc > 1 && std::strcmp(argv[1], "probe") == 0) return probe();
    std::uint32_t random = static_cast<std::uint32_t>(getpid()) * 2654435761U;
    if (cuInit(0) != CUDA_SUCCESS) return 2;
    if (write(1, "i", 1) != 1) return 3;
    families::Calls calls;
    for (char byte = 0; read(0, &byte, 1) == 1;) {
        CUcontext context = nullptr;
        if (cuCtxCreate_v2(&context, 0, 0) != CUDA_SUCCESS) continue;
        const families::Place place = families::make_place(calls, 0);
        std::vector<families::Block> blocks;
        for (int i = 0; i < 400; ++i) {
            random = random * 1664525U + 1013904223U;
            const families::Use use{calls, place, random >> 4};
            if (random >> 31 && !blocks.empty()) {
                blocks.back().family->give(use, blocks.back());
                blocks.pop_back();
                continue;
            }
            const families::Family &family = families::families()[(random >> 16) % families::families().size()];
            families::Block block{.family = &family, .bytes = 1 + (random >> 4) % (32 * kMiB)};
            if (family.memory.trait != families::Trait::open_capture && family.take(use, block) == CUDA_SUCCESS)
                blocks.push_back(block);
        }
        for (const families::Block &block : blocks) block.family->give({calls, place}, block);
        cuCtxDestroy_v2(context);
    }
    return 0;
}
