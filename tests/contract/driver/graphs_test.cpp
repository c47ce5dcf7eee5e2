// Graph memory: taken at launch, kept until it is trimmed.
#include "contract.hpp"

using namespace contract;

namespace {

constexpr int64_t kSize = 256 * kMiB;

int64_t bytes_of(CUgraphMem_attribute attribute) {
    uint64_t bytes = 0;
    REQUIRE(cuDeviceGetGraphMemAttribute(0, attribute, &bytes) == CUDA_SUCCESS);
    return static_cast<int64_t>(bytes);
}

// Leaves no graph memory for the next case.
struct TrimmedGpu : Gpu {
    ~TrimmedGpu() { cuDeviceGraphMemTrim(0); }
};

class Graph : public Owned<CUgraph, cuGraphDestroy> {
  public:
    Graph() { REQUIRE(cuGraphCreate(&handle_, 0) == CUDA_SUCCESS); }
    ~Graph() {
        for (CUgraphExec exec : execs_) cuGraphExecDestroy(exec);
    }
    CUdeviceptr allocate(uint64_t bytes) {
        CUDA_MEM_ALLOC_NODE_PARAMS params = memory_node(bytes);
        REQUIRE(cuGraphAddMemAllocNode(&last_, handle_, &last_, last_ ? 1 : 0, &params) == CUDA_SUCCESS);
        return params.dptr;
    }
    void free(CUdeviceptr start) {
        REQUIRE(cuGraphAddMemFreeNode(&last_, handle_, &last_, last_ ? 1 : 0, start) == CUDA_SUCCESS);
    }
    CUgraphExec instantiate(unsigned long long flags = 0) {
        REQUIRE(instantiation(flags) == CUDA_SUCCESS);
        return execs_.back();
    }
    CUresult instantiation(unsigned long long flags = 0) {
        CUgraphExec exec = nullptr;
        const CUresult result = cuGraphInstantiateWithFlags(&exec, handle_, flags);
        if (result == CUDA_SUCCESS) execs_.push_back(exec);
        return result;
    }
    CUresult instantiation_with_upload(CUstream stream) {
        CUDA_GRAPH_INSTANTIATE_PARAMS params{};
        params.flags = CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
        params.hUploadStream = stream;
        CUgraphExec exec = nullptr;
        const CUresult result = cuGraphInstantiateWithParams(&exec, handle_, &params);
        if (result == CUDA_SUCCESS) execs_.push_back(exec);
        return result;
    }
    void destroy(CUgraphExec exec) {
        REQUIRE(cuGraphExecDestroy(exec) == CUDA_SUCCESS);
        std::erase(execs_, exec);
    }

  private:
    CUgraphNode last_ = nullptr;
    std::vector<CUgraphExec> execs_;
};

}  // namespace

TEST_CASE("graph memory that the graph does not free is live after the launch, until the program frees it") {
    const bool by_stream = GENERATE(true, false);
    const TrimmedGpu gpu;
    const Stream stream;
    Graph graph;
    const CUdeviceptr block = graph.allocate(kSize);
    const CUgraphExec exec = graph.instantiate();
    run_graph(exec, stream);
    CHECK(bytes_of(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT) == kSize);
    REQUIRE(cuDeviceGraphMemTrim(0) == CUDA_SUCCESS);
    CHECK(gpu.taken() == kSize);
    CHECK(cuMemsetD8_v2(block, 1, kSize) == CUDA_SUCCESS);
    CHECK(cuGraphLaunch(exec, stream) == CUDA_ERROR_INVALID_VALUE);
    REQUIRE((by_stream ? cuMemFreeAsync(block, stream) : cuMemFree_v2(block)) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    REQUIRE(cuDeviceGraphMemTrim(0) == CUDA_SUCCESS);
    CHECK(gpu.taken() == 0);
}

TEST_CASE("an executable that frees on launch can be launched again") {
    const TrimmedGpu gpu;
    const Stream stream;
    Graph graph;
    const CUdeviceptr block = graph.allocate(kSize);
    const CUgraphExec exec = graph.instantiate(CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
    for (int launch = 0; launch < 3; ++launch) REQUIRE(cuGraphLaunch(exec, stream) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    CHECK(bytes_of(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT) == kSize);
    CHECK(gpu.taken() == kSize);
    REQUIRE(cuMemFree_v2(block) == CUDA_SUCCESS);
}

TEST_CASE("allocations of a graph that do not live at the same time share addresses and memory") {
    const TrimmedGpu gpu;
    const Stream stream;
    Graph graph;
    const CUdeviceptr first = graph.allocate(kSize);
    graph.free(first);
    for (int i = 0; i < 3; ++i) {
        const CUdeviceptr next = graph.allocate(kSize);
        CHECK(next == first);
        graph.free(next);
    }
    run_graph(graph.instantiate(), stream);
    CHECK(gpu.taken() == kSize);
}

TEST_CASE("graph memory is taken in units of 32 MiB, at an upload or else at the launch") {
    struct Size {
        uint64_t bytes;
        int64_t taken;
    };
    const Size size = GENERATE(Size{4 * kKiB, 32 * kMiB}, Size{33 * kMiB, 64 * kMiB}, Size{100 * kMiB + 1, 128 * kMiB});
    const bool upload = GENERATE(true, false);
    const TrimmedGpu gpu;
    const Stream stream;
    Graph graph;
    graph.free(graph.allocate(size.bytes));
    const CUgraphExec exec = graph.instantiate();
    CHECK(gpu.taken() == 0);
    if (upload) {
        REQUIRE(cuGraphUpload(exec, stream) == CUDA_SUCCESS);
        REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
        CHECK(gpu.took(size.taken));
    }
    run_graph(exec, stream);
    CHECK(gpu.took(size.taken));
    CHECK(bytes_of(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT) == size.taken);
    CHECK(bytes_of(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT) == size.taken);
    CHECK(bytes_of(CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH) >= size.taken);
}

TEST_CASE("graph memory stays when the graphs are gone, serves the next, and is taken again after a trim") {
    const TrimmedGpu gpu;
    const Stream stream;
    {
        Graph graph;
        graph.free(graph.allocate(kSize));
        run_graph(graph.instantiate(), stream);
    }
    CHECK(gpu.took(kSize));
    CHECK(bytes_of(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT) == kSize);
    Graph graph;
    graph.free(graph.allocate(kSize));
    const CUgraphExec exec = graph.instantiate();
    run_graph(exec, stream);
    CHECK(gpu.took(kSize));
    REQUIRE(cuDeviceGraphMemTrim(0) == CUDA_SUCCESS);
    CHECK(bytes_of(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT) == 0);
    CHECK(gpu.taken() <= 2 * kMiB);
    run_graph(exec, stream);
    CHECK(gpu.took(kSize));
}

TEST_CASE("a graph with memory has one executable at a time") {
    const TrimmedGpu gpu;
    Graph graph;
    graph.free(graph.allocate(kSize));
    const CUgraphExec first = graph.instantiate();
    CHECK(graph.instantiation() == CUDA_ERROR_NOT_SUPPORTED);
    graph.destroy(first);
    CHECK(graph.instantiation() == CUDA_SUCCESS);
}

TEST_CASE("graph memory for which the device has no room fails the upload and the launch, not a later one", "[fills]") {
    const TrimmedGpu gpu;
    const Stream stream;
    Graph graph;
    graph.free(graph.allocate(2 * kGiB));
    const CUgraphExec exec = graph.instantiate();
    {
        const Filled filled;
        CHECK(cuGraphUpload(exec, stream) == CUDA_ERROR_OUT_OF_MEMORY);
        CHECK(cuGraphLaunch(exec, stream) == CUDA_ERROR_OUT_OF_MEMORY);
        REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
        CHECK(bytes_of(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT) == 0);
    }
    run_graph(exec, stream);
    CHECK(bytes_of(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT) == 2 * kGiB);
}

TEST_CASE("an instantiation whose upload has no room leaves no executable", "[fills]") {
    const TrimmedGpu gpu;
    const Stream stream;
    Graph graph;
    graph.free(graph.allocate(2 * kGiB));
    {
        const Filled filled;
        CHECK(graph.instantiation_with_upload(stream) == CUDA_ERROR_OUT_OF_MEMORY);
    }
    CHECK(graph.instantiation_with_upload(stream) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    CHECK(bytes_of(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT) == 2 * kGiB);
}

TEST_CASE("a refused launch of a graph keeps what it could take, unused", "[fills]") {
    const TrimmedGpu gpu;
    const Stream stream;
    Graph graph;
    graph.free(graph.allocate(2 * kGiB));
    const CUgraphExec exec = graph.instantiate();
    Filled filled;
    filled.leave(128 * kMiB);
    CHECK(cuGraphLaunch(exec, stream) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(bytes_of(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT) == 0);
    CHECK(bytes_of(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT) >= 96 * kMiB);
}

TEST_CASE("a child graph is a copy, which its node returns") {
    const TrimmedGpu gpu;
    CUgraph parent = nullptr, child = nullptr, inside = nullptr;
    CUgraphNode node = nullptr, empty = nullptr;
    REQUIRE(cuGraphCreate(&parent, 0) == CUDA_SUCCESS);
    REQUIRE(cuGraphCreate(&child, 0) == CUDA_SUCCESS);
    REQUIRE(cuGraphAddEmptyNode(&empty, child, nullptr, 0) == CUDA_SUCCESS);
    REQUIRE(cuGraphAddChildGraphNode(&node, parent, nullptr, 0, child) == CUDA_SUCCESS);
    REQUIRE(cuGraphDestroy(child) == CUDA_SUCCESS);
    CUgraphNodeType type{};
    REQUIRE(cuGraphNodeGetType(node, &type) == CUDA_SUCCESS);
    CHECK(type == CU_GRAPH_NODE_TYPE_GRAPH);
    REQUIRE(cuGraphChildGraphNodeGetGraph(node, &inside) == CUDA_SUCCESS);
    CHECK(inside != child);
    size_t count = 0;
    REQUIRE(cuGraphGetNodes(inside, nullptr, &count) == CUDA_SUCCESS);
    CHECK(count == 1);
    CHECK(cuGraphDestroy(parent) == CUDA_SUCCESS);
}

TEST_CASE("allocations of a graph that live together share units") {
    const TrimmedGpu gpu;
    const Stream stream;
    Graph graph;
    CUdeviceptr blocks[4];
    for (CUdeviceptr &block : blocks) block = graph.allocate(20 * kMiB);
    for (const CUdeviceptr block : blocks) graph.free(block);
    run_graph(graph.instantiate(), stream);
    CHECK(gpu.took(96 * kMiB));
}

TEST_CASE("a node returns its type and its parameters") {
    const TrimmedGpu gpu;
    CUgraph graph = nullptr;
    CUgraphNode node = nullptr;
    REQUIRE(cuGraphCreate(&graph, 0) == CUDA_SUCCESS);
    CUgraphNodeParams params{};
    params.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC;
    params.alloc = memory_node(kMiB);
    REQUIRE(cuGraphAddNode_v2(&node, graph, nullptr, nullptr, 0, &params) == CUDA_SUCCESS);
    CHECK(params.alloc.dptr != 0);
    CUDA_MEM_ALLOC_NODE_PARAMS reported{};
    REQUIRE(cuGraphMemAllocNodeGetParams(node, &reported) == CUDA_SUCCESS);
    CHECK(reported.dptr == params.alloc.dptr);
    CHECK(reported.bytesize == kMiB);
    CUgraphNodeType type{};
    REQUIRE(cuGraphNodeGetType(node, &type) == CUDA_SUCCESS);
    CHECK(type == CU_GRAPH_NODE_TYPE_MEM_ALLOC);
    size_t count = 0;
    REQUIRE(cuGraphGetNodes(graph, nullptr, &count) == CUDA_SUCCESS);
    CHECK(count == 1);
    REQUIRE(cuGraphDestroy(graph) == CUDA_SUCCESS);
}

TEST_CASE("a stream-ordered allocation in a captured stream becomes a node of the graph") {
    const TrimmedGpu gpu;
    const Stream stream;
    CUdeviceptr block = 0;
    const Captured graph(stream, [&] {
        REQUIRE(cuMemAllocAsync(&block, kSize, stream) == CUDA_SUCCESS);
        REQUIRE(cuMemsetD8Async(block, 7, kSize, stream) == CUDA_SUCCESS);
        REQUIRE(cuMemFreeAsync(block, stream) == CUDA_SUCCESS);
    });
    CHECK(gpu.taken() == 0);
    size_t count = 0;
    REQUIRE(cuGraphGetNodes(graph, nullptr, &count) == CUDA_SUCCESS);
    CHECK(count == 3);
    const Executable exec(graph);
    run_graph(exec, stream);
    CHECK(gpu.took(kSize));
}
