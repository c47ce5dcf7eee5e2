// Calls by one thread.

#include "../../contract/images.hpp"
#include "driver.hpp"
#include "probe.hpp"

namespace bench {

namespace {

CUstream new_stream() {
    CUstream stream = nullptr;
    must(driver().cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    return stream;
}

auto synchronise(const Driver &cuda, CUstream stream) {
    return [&cuda, stream] { must(cuda.cuStreamSynchronize(stream), "cuStreamSynchronize"); };
}

// A call that curb and other preloads forward unchanged.
Sample passed(Words) {
    return both([pool = default_pool()](const Driver &cuda) {
        return loop([&cuda, pool] {
            int allowed = 1;
            must(cuda.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, &allowed),
                 "cuMemPoolSetAttribute");
        });
    });
}

Sample info(Words) {
    return both([](const Driver &cuda) {
        return loop([&cuda] {
            std::size_t free = 0, total = 0;
            must(cuda.cuMemGetInfo_v2(&free, &total), "cuMemGetInfo_v2");
        });
    });
}

Sample plain(Words words) {
    return both([size = bytes(words[0])](const Driver &cuda) {
        return loop([&cuda, size] {
            CUdeviceptr block = 0;
            must(cuda.cuMemAlloc_v2(&block, size), "cuMemAlloc_v2");
            must(cuda.cuMemFree_v2(block), "cuMemFree_v2");
        });
    });
}

Sample ordered(Words words) {
    keep_in_pool();
    const CUstream stream = new_stream();
    return both([size = bytes(words[0]), stream](const Driver &cuda) {
        const auto pair = [&cuda, size, stream] {
            CUdeviceptr block = 0;
            must(cuda.cuMemAllocAsync(&block, size, stream), "cuMemAllocAsync");
            must(cuda.cuMemFreeAsync(block, stream), "cuMemFreeAsync");
        };
        return loop(pair, synchronise(cuda, stream));
    });
}

Sample launch(Words) {
    CUmodule module = nullptr;
    CUfunction kernel = nullptr;
    must(driver().cuModuleLoadData(&module, contract::kSmallImage), "cuModuleLoadData");
    must(driver().cuModuleGetFunction(&kernel, module, "small"), "cuModuleGetFunction");
    const CUstream stream = new_stream();
    return both([kernel, stream](const Driver &cuda) {
        const auto call = [&cuda, kernel, stream] {
            must(cuda.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, nullptr, nullptr), "cuLaunchKernel");
        };
        return loop(call, synchronise(cuda, stream));
    });
}

// From pageable memory, as most programs copy.
Sample copy(Words) {
    static const std::byte from[4096] = {};
    CUdeviceptr block = 0;
    must(driver().cuMemAlloc_v2(&block, sizeof from), "cuMemAlloc_v2");
    const CUstream stream = new_stream();
    return both([block, stream](const Driver &cuda) {
        const auto call = [&cuda, block, stream] {
            must(cuda.cuMemcpyHtoDAsync_v2(block, from, sizeof from, stream), "cuMemcpyHtoDAsync_v2");
        };
        return loop(call, synchronise(cuda, stream));
    });
}

Sample graph(Words) {
    CUgraph empty = nullptr;
    CUgraphExec executable = nullptr;
    must(driver().cuGraphCreate(&empty, 0), "cuGraphCreate");
    must(driver().cuGraphInstantiateWithFlags(&executable, empty, 0), "cuGraphInstantiateWithFlags");
    const CUstream stream = new_stream();
    return both([executable, stream](const Driver &cuda) {
        const auto call = [&cuda, executable, stream] {
            must(cuda.cuGraphLaunch(executable, stream), "cuGraphLaunch");
        };
        return loop(call, synchronise(cuda, stream));
    });
}

constexpr Probe kProbes[] = {
    {"passed", 0, passed}, {"info", 0, info}, {"plain", 1, plain}, {"async", 1, ordered},
    {"launch", 0, launch}, {"copy", 0, copy}, {"graph", 0, graph},
};

}  // namespace

std::span<const Probe> call_probes() { return kProbes; }

}  // namespace bench
