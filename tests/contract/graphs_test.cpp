// Graph memory: taken at launch, kept until it is trimmed.
#include "contract.hpp"

using namespace contract;

namespace {

constexpr int64_t kSize = 256 * kMiB;

class Graph {
  public:
    Graph() { REQUIRE(cuGraphCreate(&handle_, 0) == CUDA_SUCCESS); }
    ~Graph() {
        for (CUgraphExec exec : execs_) cuGraphExecDestroy(exec);
        cuGraphDestroy(handle_);
        cuDeviceGraphMemTrim(0);
    }
    Graph(const Graph &) = delete;
    Graph &operator=(const Graph &) = delete;

    CUdeviceptr allocate(uint64_t bytes) {
        CUDA_MEM_ALLOC_NODE_PARAMS params{};
        params.poolProps = pool_on(CU_MEM_LOCATION_TYPE_DEVICE, 0);
        params.bytesize = bytes;
        REQUIRE(cuGraphAddMemAllocNode(&last_, handle_, &last_, last_ ? 1 : 0, &params) == CUDA_SUCCESS);
        return params.dptr;
    }
    void free(CUdeviceptr start) {
        REQUIRE(cuGraphAddMemFreeNode(&last_, handle_, &last_, last_ ? 1 : 0, start) == CUDA_SUCCESS);
    }
    CUgraphExec instantiate(unsigned long long flags = 0) {
        execs_.emplace_back();
        REQUIRE(cuGraphInstantiateWithFlags(&execs_.back(), handle_, flags) == CUDA_SUCCESS);
        return execs_.back();
    }

  private:
    CUgraph handle_ = nullptr;
    CUgraphNode last_ = nullptr;
    std::vector<CUgraphExec> execs_;
};

}  // namespace

TEST_CASE("graph memory is taken at the first launch and kept until it is trimmed") {
    const Gpu gpu;
    const Stream stream;
    Graph graph;
    graph.free(graph.allocate(kSize));
    const CUgraphExec exec = graph.instantiate();
    CHECK(graph_attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT) == 0);
    REQUIRE(cuGraphLaunch(exec, stream) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    CHECK(graph_attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT) == kSize);
    CHECK(gpu.taken() == kSize);
    REQUIRE(cuGraphLaunch(exec, stream) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    CHECK(gpu.taken() == kSize);
    REQUIRE(cuDeviceGraphMemTrim(0) == CUDA_SUCCESS);
    CHECK(graph_attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT) == 0);
    CHECK(gpu.taken() == 0);
}

TEST_CASE("graph memory that is not freed in the graph is live after it, and freed by the program") {
    const bool by_stream = GENERATE(true, false);
    const Gpu gpu;
    const Stream stream;
    Graph graph;
    const CUdeviceptr block = graph.allocate(kSize);
    const CUgraphExec exec = graph.instantiate();
    REQUIRE(cuGraphLaunch(exec, stream) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    CHECK(graph_attribute(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT) == kSize);
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
    const Gpu gpu;
    const Stream stream;
    Graph graph;
    const CUdeviceptr block = graph.allocate(kSize);
    const CUgraphExec exec = graph.instantiate(CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
    for (int launch = 0; launch < 3; ++launch) REQUIRE(cuGraphLaunch(exec, stream) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    CHECK(graph_attribute(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT) == kSize);
    CHECK(gpu.taken() == kSize);
    REQUIRE(cuMemFree_v2(block) == CUDA_SUCCESS);
}

TEST_CASE("allocations of a graph that do not live at the same time share memory") {
    const Gpu gpu;
    const Stream stream;
    Graph graph;
    for (int i = 0; i < 4; ++i) graph.free(graph.allocate(kSize));
    REQUIRE(cuGraphLaunch(graph.instantiate(), stream) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    CHECK(gpu.taken() == kSize);
}

TEST_CASE("a node tells its type and its parameters") {
    const Gpu gpu;
    CUgraph graph = nullptr;
    CUgraphNode node = nullptr;
    REQUIRE(cuGraphCreate(&graph, 0) == CUDA_SUCCESS);
    CUgraphNodeParams params{};
    params.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC;
    params.alloc.poolProps = pool_on(CU_MEM_LOCATION_TYPE_DEVICE, 0);
    params.alloc.bytesize = kMiB;
    REQUIRE(cuGraphAddNode_v2(&node, graph, nullptr, nullptr, 0, &params) == CUDA_SUCCESS);
    CHECK(params.alloc.dptr != 0);
    CUDA_MEM_ALLOC_NODE_PARAMS told{};
    REQUIRE(cuGraphMemAllocNodeGetParams(node, &told) == CUDA_SUCCESS);
    CHECK(told.dptr == params.alloc.dptr);
    CHECK(told.bytesize == kMiB);
    CUgraphNodeType type{};
    REQUIRE(cuGraphNodeGetType(node, &type) == CUDA_SUCCESS);
    CHECK(type == CU_GRAPH_NODE_TYPE_MEM_ALLOC);
    size_t count = 0;
    REQUIRE(cuGraphGetNodes(graph, nullptr, &count) == CUDA_SUCCESS);
    CHECK(count == 1);
    REQUIRE(cuGraphDestroy(graph) == CUDA_SUCCESS);
}

TEST_CASE("a stream-ordered allocation in a captured stream becomes a node of the graph") {
    const Gpu gpu;
    const Stream stream;
    CUdeviceptr block = 0;
    CUgraph graph = nullptr;
    CUgraphExec exec = nullptr;
    REQUIRE(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
    REQUIRE(cuMemAllocAsync(&block, kSize, stream) == CUDA_SUCCESS);
    REQUIRE(cuMemsetD8Async(block, 7, kSize, stream) == CUDA_SUCCESS);
    REQUIRE(cuMemFreeAsync(block, stream) == CUDA_SUCCESS);
    REQUIRE(cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);
    CHECK(gpu.taken() == 0);
    size_t count = 0;
    REQUIRE(cuGraphGetNodes(graph, nullptr, &count) == CUDA_SUCCESS);
    CHECK(count == 3);
    REQUIRE(cuGraphInstantiateWithFlags(&exec, graph, 0) == CUDA_SUCCESS);
    REQUIRE(cuGraphLaunch(exec, stream) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    CHECK(gpu.took(kSize));
    cuGraphExecDestroy(exec);
    cuGraphDestroy(graph);
    cuDeviceGraphMemTrim(0);
}
