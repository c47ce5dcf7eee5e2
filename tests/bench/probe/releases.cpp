// Memory that is kept for reuse goes back: asked for from outside, or by the program itself, which is the measure.

#include <unistd.h>

#include <algorithm>

#include "driver.hpp"
#include "probe.hpp"
#include "spawn.hpp"

namespace bench {

namespace {

struct Blocks {
    explicit Blocks(Words words)
        : ordered(words[0] == "pools"), blocks(static_cast<std::size_t>(number(words[1]))), size(bytes(words[2])) {
        keep_in_pool();
    }

    void take() {
        for (CUdeviceptr &block : blocks)
            if (ordered)
                must(driver().cuMemAllocAsync(&block, size, nullptr), "cuMemAllocAsync");
            else
                must(driver().cuMemAlloc_v2(&block, size), "cuMemAlloc_v2");
    }

    void free() const {
        for (const CUdeviceptr block : blocks)
            if (ordered)
                must(driver().cuMemFreeAsync(block, nullptr), "cuMemFreeAsync");
            else
                must(driver().cuMemFree_v2(block), "cuMemFree_v2");
    }

    // What is freed in order is kept by the pool until it is trimmed.
    static void trim() {
        must(driver().cuStreamSynchronize(nullptr), "cuStreamSynchronize");
        must(driver().cuMemPoolTrimTo(default_pool(), 0), "cuMemPoolTrimTo");
    }

    bool ordered;
    std::vector<CUdeviceptr> blocks;
    std::size_t size;
};

// By the program itself: the frees of plain blocks, or the trim of a pool.
Sample by_hand(Words words) {
    return [blocks = Blocks(words)](long count) mutable {
        double time = 0;
        for (long i = 0; i < count; ++i) {
            blocks.take();
            if (blocks.ordered) blocks.free();
            const auto start = Clock::now();
            if (blocks.ordered)
                Blocks::trim();
            else
                blocks.free();
            time += nanoseconds_since(start);
        }
        return time / static_cast<double>(count);
    };
}

// By a command, in which PID stands for this process: all of it, its start included.
Sample by_command(Words words) {
    driver();
    std::vector<std::string> command(words.begin() + 3, words.end());
    std::replace(command.begin(), command.end(), std::string("PID"), std::to_string(getpid()));
    return [blocks = Blocks(words), command, environment = bare_environment()](long count) mutable {
        double time = 0;
        for (long i = 0; i < count; ++i) {
            blocks.take();
            blocks.free();
            const auto start = Clock::now();
            run(command, environment);
            time += nanoseconds_since(start);
        }
        return time / static_cast<double>(count);
    };
}

constexpr Probe kProbes[] = {
    {"given-back", "plain|pools BLOCKS BYTES", 3, by_hand},
    {"released", "plain|pools BLOCKS BYTES COMMAND...", 4, by_command},
};

}  // namespace

std::span<const Probe> release_probes() { return kProbes; }

}  // namespace bench
