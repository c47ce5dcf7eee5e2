// Many threads at once, and many allocations alive at once.

#include <algorithm>
#include <barrier>
#include <exception>
#include <memory>
#include <thread>

#include "driver.hpp"
#include "probe.hpp"

namespace bench {

namespace {

// Threads that wait between samples. The end of the process ends them.
struct Crew {
    explicit Crew(long threads, std::size_t bytes)
        : begin(threads + 1), end(threads + 1), failed(static_cast<std::size_t>(threads)), size(bytes) {
        for (auto &reason : failed) std::thread(&Crew::work, this, std::ref(reason)).detach();
    }

    void work(std::exception_ptr &reason) {
        for (;;) {
            begin.arrive_and_wait();
            try {
                driver();  // makes the context current
                for (long i = 0; i < count; ++i) {
                    CUdeviceptr block = 0;
                    must(cuda->cuMemAlloc_v2(&block, size), "cuMemAlloc_v2");
                    must(cuda->cuMemFree_v2(block), "cuMemFree_v2");
                }
            } catch (const Cannot &) {
                reason = std::current_exception();
            }
            end.arrive_and_wait();
        }
    }

    std::barrier<> begin, end;
    std::vector<std::exception_ptr> failed;
    std::size_t size;
    const Driver *cuda = nullptr;
    long count = 0;
};

// The time of one pair is that of the sample, divided by the pairs of all threads.
Sample threads(Words words) {
    driver();
    const long many = number(words[0]);
    auto *crew = new Crew(many, bytes(words[1]));
    const auto make = [crew, many](const Driver &cuda) -> Sample {
        return [&cuda, crew, many](long count) {
            crew->cuda = &cuda;
            const auto together = [&](long pairs) {
                crew->count = std::max(pairs / many, 1L);
                const auto start = Clock::now();
                crew->begin.arrive_and_wait();
                crew->end.arrive_and_wait();
                const double time = nanoseconds_since(start);
                for (const auto &reason : crew->failed)
                    if (reason) std::rethrow_exception(reason);
                return time / static_cast<double>(crew->count * many);
            };
            together(count / 8);  // its time is dropped, as in loop()
            return together(count);
        };
    };
    return both(make, Halves::equal);
}

// Allocations of one size, plain or stream-ordered.
struct Kind {
    void take(CUdeviceptr *block) const {
        if (ordered)
            must(cuda.cuMemAllocAsync(block, size, nullptr), "cuMemAllocAsync");
        else
            must(cuda.cuMemAlloc_v2(block, size), "cuMemAlloc_v2");
    }
    void give(CUdeviceptr block) const {
        if (ordered)
            must(cuda.cuMemFreeAsync(block, nullptr), "cuMemFreeAsync");
        else
            must(cuda.cuMemFree_v2(block), "cuMemFree_v2");
    }
    const Driver &cuda;
    bool ordered;
    std::size_t size;
};

struct Live {
    explicit Live(Words words)
        : kind{driver(), words[0] == "async", bytes(words[2])}, blocks(static_cast<std::size_t>(number(words[1]))) {
        for (CUdeviceptr &block : blocks) kind.take(&block);
    }
    Kind kind;
    std::vector<CUdeviceptr> blocks;
};

// Frees any one of many live blocks, and allocates another in its place.
Sample exchanged(Words words) {
    return loop([live = std::make_shared<Live>(words), random = std::uint32_t{1}]() mutable {
        random = random * 1'664'525 + 1'013'904'223;
        CUdeviceptr &block = live->blocks[std::uint64_t{random} * live->blocks.size() >> 32];
        live->kind.give(block);
        live->kind.take(&block);
    });
}

// Allocates and frees a block while many others live.
Sample beside(Words words) {
    return loop([live = std::make_shared<Live>(words)] {
        CUdeviceptr block = 0;
        live->kind.take(&block);
        live->kind.give(block);
    });
}

constexpr Probe kProbes[] = {
    {"threads", 2, threads},
    {"live", 3, exchanged},
    {"beside", 3, beside},
};

}  // namespace

std::span<const Probe> crowd_probes() { return kProbes; }

}  // namespace bench
