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

// A call that a shim knows and has nothing to add to.
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

Sample mapped(Words words) {
    const std::size_t size = bytes(words[0]);
    CUdeviceptr place = 0;
    must(driver().cuMemAddressReserve(&place, size, 0, 0, 0), "cuMemAddressReserve");
    CUmemAllocationProp kind{};
    kind.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    kind.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    const CUmemAccessDesc access{kind.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    return both([size, place, kind, access](const Driver &cuda) {
        return loop([&cuda, size, place, kind, access] {
            CUmemGenericAllocationHandle handle = 0;
            must(cuda.cuMemCreate(&handle, size, &kind, 0), "cuMemCreate");
            must(cuda.cuMemMap(place, size, 0, handle, 0), "cuMemMap");
            must(cuda.cuMemSetAccess(place, size, &access, 1), "cuMemSetAccess");
            must(cuda.cuMemUnmap(place, size), "cuMemUnmap");
            must(cuda.cuMemRelease(handle), "cuMemRelease");
        });
    });
}

// More than there is: what it costs to be told so.
Sample refused(Words words) {
    return loop([&cuda = driver(), size = bytes(words[0])] {
        CUdeviceptr block = 0;
        if (const CUresult result = cuda.cuMemAlloc_v2(&block, size); result != CUDA_ERROR_OUT_OF_MEMORY)
            throw Cannot("cuMemAlloc_v2 was not refused: it returned " + std::to_string(static_cast<int>(result)));
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
    {"passed", "", 0, passed},      {"info", "", 0, info},          {"plain", "BYTES", 1, plain},
    {"async", "BYTES", 1, ordered}, {"mapped", "BYTES", 1, mapped}, {"refused", "BYTES", 1, refused},
    {"launch", "", 0, launch},      {"graph", "", 0, graph},
};

}  // namespace

std::span<const Probe> call_probes() { return kProbes; }

}  // namespace bench
