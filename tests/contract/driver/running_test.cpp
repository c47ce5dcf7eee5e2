// Work in progress: which calls wait for it.
#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

#include "contract.hpp"
#include "images.hpp"

using namespace contract;

namespace {

// 2 MiB in the current context.
class Block {
  public:
    Block() { REQUIRE(cuMemAlloc_v2(&address_, 2 * kMiB) == CUDA_SUCCESS); }
    ~Block() {
        if (address_) free();
    }
    void free() { CHECK(cuMemFree_v2(std::exchange(address_, 0)) == CUDA_SUCCESS); }
    Block(const Block &) = delete;
    Block &operator=(const Block &) = delete;
    operator CUdeviceptr() const { return address_; }

  private:
    CUdeviceptr address_ = 0;
};

// A function of the program that the driver is to call.
struct HostCall {
    std::atomic<bool> may_end{false}, has_ended{false};
    std::thread::id thread;

    static void run(void *self) {
        auto &call = *static_cast<HostCall *>(self);
        call.thread = std::this_thread::get_id();
        while (!call.may_end) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        call.has_ended = true;
    }
    static void run_back(CUstream /*stream*/, CUresult result, void *self) {
        if (result == CUDA_SUCCESS) run(self);
    }
};

}  // namespace

TEST_CASE("the driver calls a function of the program on another thread, and what follows it in the stream waits") {
    const Gpu gpu;
    const Stream stream;
    const Event after;
    HostCall call;
    CUgraph graph = nullptr;
    CUgraphExec executable = nullptr;
    SECTION("as work of the stream") { REQUIRE(cuLaunchHostFunc(stream, HostCall::run, &call) == CUDA_SUCCESS); }
    SECTION("as a callback") { REQUIRE(cuStreamAddCallback(stream, HostCall::run_back, &call, 0) == CUDA_SUCCESS); }
    SECTION("as a node of a graph") {
        const CUDA_HOST_NODE_PARAMS parameters{HostCall::run, &call};
        CUgraphNode node = nullptr;
        REQUIRE(cuGraphCreate(&graph, 0) == CUDA_SUCCESS);
        REQUIRE(cuGraphAddHostNode(&node, graph, nullptr, 0, &parameters) == CUDA_SUCCESS);
        REQUIRE(cuGraphInstantiateWithFlags(&executable, graph, 0) == CUDA_SUCCESS);
        REQUIRE(cuGraphLaunch(executable, stream) == CUDA_SUCCESS);
    }
    REQUIRE(cuEventRecord(after, stream) == CUDA_SUCCESS);
    CHECK(cuStreamQuery(stream) == CUDA_ERROR_NOT_READY);
    CHECK(cuEventQuery(after) == CUDA_ERROR_NOT_READY);
    call.may_end = true;
    CHECK(cuEventSynchronize(after) == CUDA_SUCCESS);
    CHECK(call.has_ended);
    CHECK(call.thread != std::this_thread::get_id());
    CHECK(cuStreamQuery(stream) == CUDA_SUCCESS);
    if (executable) cuGraphExecDestroy(executable);
    if (graph) cuGraphDestroy(graph);
}

TEST_CASE("a kernel waits for the function of the program before it, and the function for the kernel before that") {
    const Gpu gpu;
    const Module module(kBusyImage);
    const Block block;
    const Stream stream;
    const CUfunction busy = module.function("busy");
    HostCall call;
    call.may_end = true;
    const auto until_ended = [&] {
        CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
        CHECK(call.has_ended);
    };
    CHECK(is_seen_in_progress([&] {
        call.has_ended = false;
        run_busy(busy, stream, block);
        REQUIRE(cuLaunchHostFunc(stream, HostCall::run, &call) == CUDA_SUCCESS);
        const bool waits = !call.has_ended;
        const bool in_progress = cuStreamQuery(stream) == CUDA_ERROR_NOT_READY;
        until_ended();
        return waits && in_progress;
    }));
    call.may_end = call.has_ended = false;
    REQUIRE(cuLaunchHostFunc(stream, HostCall::run, &call) == CUDA_SUCCESS);
    run_busy(busy, stream, block);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // longer than the kernel takes
    CHECK(cuStreamQuery(stream) == CUDA_ERROR_NOT_READY);
    call.may_end = true;
    until_ended();
}

TEST_CASE("work in progress is not ready, and a synchronisation waits for it") {
    const Gpu gpu;
    const Module module(kBusyImage);
    const Block block;
    const Stream stream;
    const CUfunction busy = module.function("busy");
    const Event event;
    CHECK(is_seen_in_progress([&] {
        run_busy(busy, stream, block);
        REQUIRE(cuEventRecord(event, stream) == CUDA_SUCCESS);
        return cuStreamQuery(stream) == CUDA_ERROR_NOT_READY && cuEventQuery(event) == CUDA_ERROR_NOT_READY;
    }));
    SECTION("of the stream") { CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS); }
    SECTION("of the event") { CHECK(cuEventSynchronize(event) == CUDA_SUCCESS); }
    SECTION("of the context") { CHECK(cuCtxSynchronize() == CUDA_SUCCESS); }
    CHECK(cuStreamQuery(stream) == CUDA_SUCCESS);
    CHECK(cuEventQuery(event) == CUDA_SUCCESS);
}

TEST_CASE("cuMemFree waits for all work of the context, whatever it uses") {
    const Gpu gpu;
    const Module module(kBusyImage);
    const Block block;
    const Stream stream;
    const CUdeviceptr other = allocate(GENERATE(4 * kKiB, 2 * kMiB));
    run_busy(module.function("busy"), stream, block);
    CHECK(cuMemFree_v2(other) == CUDA_SUCCESS);
    CHECK(cuStreamQuery(stream) == CUDA_SUCCESS);
}

TEST_CASE("cuMemFree waits for the work of the block's context, and not for that of another") {
    const Gpu gpu;
    CUcontext second = create_context();
    {
        const Module module(kBusyImage);
        Block of_second;
        const Stream stream;
        const bool from_there = GENERATE(false, true);
        CHECK(is_seen_in_progress([&] {
            REQUIRE(cuCtxSetCurrent(gpu.context) == CUDA_SUCCESS);
            const CUdeviceptr block = allocate(2 * kMiB);
            REQUIRE(cuCtxSetCurrent(second) == CUDA_SUCCESS);
            run_busy(module.function("busy"), stream, of_second);
            if (!from_there) REQUIRE(cuCtxSetCurrent(gpu.context) == CUDA_SUCCESS);
            CHECK(cuMemFree_v2(block) == CUDA_SUCCESS);
            REQUIRE(cuCtxSetCurrent(second) == CUDA_SUCCESS);
            return cuStreamQuery(stream) == CUDA_ERROR_NOT_READY;
        }));
        // From an idle context, the free of a block still waits for the work of the block's context.
        REQUIRE(cuCtxSetCurrent(gpu.context) == CUDA_SUCCESS);
        of_second.free();
        REQUIRE(cuCtxSetCurrent(second) == CUDA_SUCCESS);
        CHECK(cuStreamQuery(stream) == CUDA_SUCCESS);
    }
    CHECK(cuCtxDestroy_v2(second) == CUDA_SUCCESS);
    REQUIRE(cuCtxSetCurrent(gpu.context) == CUDA_SUCCESS);
}
