// Stream-ordered memory, graphs and captures.
#include "ways.hpp"

using namespace fault;

WAY(stream_ordered_memory, kCapped) {
    p.start();
    CUstream stream = nullptr;
    CUdeviceptr one = 0, two = 0, none = 0;
    DO(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    const CUmemoryPool pool = keeping_pool(p);
    DO(cuMemAllocAsync, &one, 100 * MiB, stream);
    DO(cuMemAllocAsync, &two, 1 * MiB, nullptr);
    REFUSED(cuMemAllocAsync, &none, 2 * GiB, stream);
    p.read_books();
    DO(cuMemFreeAsync, one, stream);
    DO(cuStreamSynchronize, stream);
    p.read_books();  // the pool keeps it
    p.mend();
    DO(cuMemFree_v2, two);
    DO(cuCtxSynchronize);
    DO(cuMemPoolTrimTo, pool, 0);
    DO(cuStreamDestroy_v2, stream);
    p.read_books();
    p.cap_holds(kCap);
}

WAY(idle_memory_of_a_pool_at_the_cap, kCapped) {
    p.start();
    CUdeviceptr pooled = 0, plain = 0;
    const CUmemoryPool pool = keeping_pool(p);
    DO(cuMemAllocAsync, &pooled, 1024 * MiB, nullptr);
    DO(cuMemFreeAsync, pooled, nullptr);
    DO(cuCtxSynchronize);
    // Served out of what the pool has, then by taking that away from it.
    DO(cuMemAlloc_v2, &plain, 300 * MiB);
    DO(cuMemAllocAsync, &pooled, 900 * MiB, nullptr);
    DO(cuMemFreeAsync, pooled, nullptr);
    DO(cuCtxSynchronize);
    DO(cuMemFree_v2, plain);
    DO(cuMemAlloc_v2, &plain, 1200 * MiB);
    p.read_books();
    p.mend();
    DO(cuMemFree_v2, plain);
    DO(cuMemPoolTrimTo, pool, 0);
    p.read_books();
    p.cap_holds(kCap);
}

WAY(pools_of_the_program, kCapped) {
    p.start();
    const CUmemPoolProps properties = pool_on_device();
    CUmemoryPool pool = nullptr;
    CUdeviceptr one = 0;
    std::uint64_t keep = 64 * MiB, told = 0;
    DO(cuMemPoolCreate, &pool, &properties);
    DO(cuMemPoolSetAttribute, pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep);
    DO(cuMemAllocFromPoolAsync, &one, 200 * MiB, pool, nullptr);
    DO(cuMemPoolGetAttribute, pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &told);
    if (told != keep) p.problem("the pool's release threshold is told as " + std::to_string(told));
    p.read_books();
    p.mend();
    DO(cuMemFreeAsync, one, nullptr);
    DO(cuCtxSynchronize);
    DO(cuMemPoolDestroy, pool);
    p.read_books();
    p.cap_holds(kCap);
}

WAY(graphs, kCapped) {
    p.start();
    CUDA_MEM_ALLOC_NODE_PARAMS parameters = memory_node(100 * MiB);
    CUgraph graph = nullptr;
    CUgraphNode allocates = nullptr, frees = nullptr;
    CUgraphExec executable = nullptr;
    DO(cuGraphCreate, &graph, 0);
    DO(cuGraphAddMemAllocNode, &allocates, graph, nullptr, 0, &parameters);
    DO(cuGraphAddMemFreeNode, &frees, graph, &allocates, 1, parameters.dptr);
    DO(cuGraphInstantiateWithFlags, &executable, graph, 0);
    DO(cuGraphUpload, executable, nullptr);
    DO(cuGraphLaunch, executable, nullptr);
    DO(cuGraphLaunch, executable, nullptr);
    p.read_books();
    p.mend();
    DO(cuCtxSynchronize);
    DO(cuGraphExecDestroy, executable);
    DO(cuGraphDestroy, graph);
    DO(cuDeviceGraphMemTrim, 0);
    p.read_books();
    p.cap_holds(kCap);
}

WAY(captures, R"({"version": 1, "gpu": {"*": {"cap": "2GiB", "cache": {"max": "500MiB", "idle": "1h"}}}})") {
    p.start();
    CUstream stream = nullptr, left = nullptr;
    CUdeviceptr block = 0, plain = 0;
    CUgraph graph = nullptr, none = nullptr;
    CUgraphExec executable = nullptr;
    DO(cuMemAlloc_v2, &plain, 16 * MiB);
    DO(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    DO(cuStreamCreate, &left, CU_STREAM_NON_BLOCKING);
    DO(cuStreamBeginCapture_v2, stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
    DO(cuMemAllocAsync, &block, 64 * MiB, stream);
    DO(cuMemFreeAsync, block, stream);
    DO(cuStreamEndCapture, stream, &graph);
    DO(cuGraphInstantiateWithFlags, &executable, graph, 0);
    DO(cuGraphLaunch, executable, stream);
    DO(cuStreamSynchronize, stream);
    // Another one ends with its stream; one that never was ends nothing.
    DO(cuStreamBeginCapture_v2, left, CU_STREAM_CAPTURE_MODE_RELAXED);
    DO(cuStreamDestroy_v2, left);
    p.call("cuStreamEndCapture", CUDA_ERROR_ILLEGAL_STATE, [&] { return cuStreamEndCapture(stream, &none); });
    // No capture is in progress, so a freed block is kept, and a pool is waited for when it is released.
    DO(cuMemFree_v2, plain);
    p.read_books();
    p.mend();
    DO(cuGraphExecDestroy, executable);
    DO(cuGraphDestroy, graph);
    DO(cuDeviceGraphMemTrim, 0);
    DO(cuStreamDestroy_v2, stream);
    p.release(R"(["cache", "pools"])");
    p.read_books();
    p.cap_holds(kCap);
}
