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

// Threads that wait between samples. They are never joined: the process ends with them.
struct Crew {
    explicit Crew(long threads, std::size_t bytes)
        : begin(threads + 1), end(threads + 1), failed(static_cast<std::size_t>(threads)), size(bytes) {
        for (auto &reason : failed) std::thread(&Crew::work, this, std::ref(reason)).detach();
    }

    void work(std::exception_ptr &reason) {
        for (;;) {
            begin.arrive_and_wait();
            try {
                driver();  // the context is made current
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

// Of all threads together: the time for one pair is that of the sample by the number of pairs of all.
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
            together(count / 8);  // untimed, as in a loop
            return together(count);
        };
    };
    return both(make, Halves::equal);
}

using Blocks = std::vector<CUdeviceptr>;

struct Plain {
    void take(CUdeviceptr *block) const { must(cuda.cuMemAlloc_v2(block, size), "cuMemAlloc_v2"); }
    void give(CUdeviceptr block) const { must(cuda.cuMemFree_v2(block), "cuMemFree_v2"); }
    const Driver &cuda;
    std::size_t size;
};

struct Ordered {
    void take(CUdeviceptr *block) const { must(cuda.cuMemAllocAsync(block, size, nullptr), "cuMemAllocAsync"); }
    void give(CUdeviceptr block) const { must(cuda.cuMemFreeAsync(block, nullptr), "cuMemFreeAsync"); }
    const Driver &cuda;
    std::size_t size;
};

template <class Kind>
std::shared_ptr<Blocks> taken(Kind kind, long many) {
    auto blocks = std::make_shared<Blocks>(static_cast<std::size_t>(many));
    for (CUdeviceptr &block : *blocks) kind.take(&block);
    return blocks;
}

// Any one of many live blocks is freed, and another taken in its place.
template <class Kind>
Sample exchanged(Kind kind, long many) {
    return loop([kind, blocks = taken(kind, many), random = std::uint32_t{1}]() mutable {
        random = random * 1'664'525 + 1'013'904'223;
        CUdeviceptr &block = (*blocks)[std::uint64_t{random} * blocks->size() >> 32];
        kind.give(block);
        kind.take(&block);
    });
}

// A block comes and goes, and many others stay.
template <class Kind>
Sample visited(Kind kind, long many) {
    return loop([kind, others = taken(kind, many)] {
        CUdeviceptr block = 0;
        kind.take(&block);
        kind.give(block);
    });
}

Sample live(Words words) {
    const long many = number(words[1]);
    const std::size_t size = bytes(words[2]);
    return words[0] == "plain" ? exchanged(Plain{driver(), size}, many) : exchanged(Ordered{driver(), size}, many);
}

Sample beside(Words words) {
    const long many = number(words[1]);
    const std::size_t size = bytes(words[2]);
    return words[0] == "plain" ? visited(Plain{driver(), size}, many) : visited(Ordered{driver(), size}, many);
}

constexpr Probe kProbes[] = {
    {"threads", 2, threads},
    {"live", 3, live},
    {"beside", 3, beside},
};

}  // namespace

std::span<const Probe> crowd_probes() { return kProbes; }

}  // namespace bench
