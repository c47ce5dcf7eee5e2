// Stream capture: which calls break it (docs/results/driver.md).
#include <functional>
#include <thread>

#include "contract.hpp"
#include "images.hpp"

using namespace contract;

namespace {

CUstreamCaptureMode exchange(CUstreamCaptureMode mode) {
    REQUIRE(cuThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS);
    return mode;
}

// Captures in `stream`, calls `meanwhile` in the same thread, and returns how the capture ended.
CUresult capture_on(CUstream stream, CUstreamCaptureMode mode, const std::function<void()> &meanwhile) {
    CUgraph graph = nullptr;
    REQUIRE(cuStreamBeginCapture_v2(stream, mode) == CUDA_SUCCESS);
    meanwhile();
    const CUresult result = cuStreamEndCapture(stream, &graph);
    CHECK((graph != nullptr) == (result == CUDA_SUCCESS));
    if (graph) cuGraphDestroy(graph);
    return result;
}

// The same, but calls `meanwhile` in another thread, whose mode is `other`.
CUresult capture_meanwhile(const Gpu &gpu, CUstreamCaptureMode mode, CUstreamCaptureMode other,
                           const std::function<void()> &meanwhile) {
    const Stream stream;
    return capture_on(stream, mode, [&] {
        std::thread([&] {
            cuCtxSetCurrent(gpu.context);
            CUstreamCaptureMode wanted = other;
            cuThreadExchangeStreamCaptureMode(&wanted);
            meanwhile();
        }).join();
    });
}

constexpr auto kGlobal = CU_STREAM_CAPTURE_MODE_GLOBAL;
constexpr auto kThreadLocal = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
constexpr auto kRelaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
constexpr auto kBroken = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;

}  // namespace

TEST_CASE("allocating and freeing break another thread's global capture, unless the thread is relaxed") {
    const Gpu gpu;
    const auto allocate = [](CUresult expected) {
        return [=] {
            CUdeviceptr block = 0;
            CHECK(cuMemAlloc_v2(&block, kMiB) == expected);
            if (block) CHECK(cuMemFree_v2(block) == CUDA_SUCCESS);
        };
    };
    const CUdeviceptr before = contract::allocate(kMiB);
    CHECK(capture_meanwhile(gpu, kGlobal, kGlobal, [=] { cuMemFree_v2(before); }) == kBroken);
    CHECK(cuMemFree_v2(before) == CUDA_SUCCESS);
    CHECK(capture_meanwhile(gpu, kGlobal, kGlobal, allocate(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)) == kBroken);
    CHECK(capture_meanwhile(gpu, kGlobal, kRelaxed, allocate(CUDA_SUCCESS)) == CUDA_SUCCESS);
    CHECK(capture_meanwhile(gpu, kGlobal, kThreadLocal, allocate(CUDA_SUCCESS)) == CUDA_SUCCESS);
    CHECK(capture_meanwhile(gpu, kThreadLocal, kGlobal, allocate(CUDA_SUCCESS)) == CUDA_SUCCESS);
    CHECK(capture_meanwhile(gpu, kRelaxed, kGlobal, allocate(CUDA_SUCCESS)) == CUDA_SUCCESS);
}

TEST_CASE(
    "in the capturing thread itself allocating breaks the capture, unless the thread is relaxed or the capture is") {
    struct Case {
        CUstreamCaptureMode capture, thread;
        CUresult end;
    };
    const Case one = GENERATE(Case{kGlobal, kGlobal, kBroken}, Case{kGlobal, kThreadLocal, kBroken},
                              Case{kGlobal, kRelaxed, CUDA_SUCCESS}, Case{kThreadLocal, kGlobal, kBroken},
                              Case{kThreadLocal, kRelaxed, CUDA_SUCCESS}, Case{kRelaxed, kGlobal, CUDA_SUCCESS});
    const Gpu gpu;
    const Stream stream;
    CUdeviceptr block = 0;
    CHECK(capture_on(stream, one.capture, [&] {
              exchange(one.thread);
              const CUresult result = cuMemAlloc_v2(&block, kMiB);
              exchange(kGlobal);
              CHECK((result == CUDA_SUCCESS) == (one.end == CUDA_SUCCESS));
          }) == one.end);
    cuMemFree_v2(block);
}

TEST_CASE("trimming a pool breaks another thread's global capture, unless the thread is relaxed") {
    const Gpu gpu;
    const Stream before;
    uint64_t threshold = ~uint64_t{0};
    CUdeviceptr block = 0;
    const CUmemoryPool pool = default_pool();
    REQUIRE(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold) == CUDA_SUCCESS);
    REQUIRE(cuMemAllocAsync(&block, kGiB, before) == CUDA_SUCCESS);
    REQUIRE(cuMemFreeAsync(block, before) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(before) == CUDA_SUCCESS);

    CHECK(capture_meanwhile(gpu, kGlobal, kGlobal, [=] { cuMemPoolTrimTo(pool, 0); }) == kBroken);
    CHECK(gpu.took(kGiB));
    CHECK(capture_meanwhile(gpu, kGlobal, kRelaxed, [=] { CHECK(cuMemPoolTrimTo(pool, 0) == CUDA_SUCCESS); }) ==
          CUDA_SUCCESS);
    CHECK(gpu.took(0));
    threshold = 0;
    cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold);
}

TEST_CASE("synchronising the context breaks a capture in every mode of the thread") {
    const auto mode = GENERATE(kGlobal, kThreadLocal, kRelaxed);
    const Gpu gpu;
    CHECK(capture_meanwhile(gpu, kGlobal, mode, [] { CHECK(cuCtxSynchronize() != CUDA_SUCCESS); }) == kBroken);
}

TEST_CASE("synchronising or querying the capturing stream breaks the capture") {
    const bool wait = GENERATE(true, false);
    const Gpu gpu;
    const Stream stream;
    const auto ask = [&] { return wait ? cuStreamSynchronize(stream) : cuStreamQuery(stream); };
    CHECK(capture_on(stream, kRelaxed, [&] { CHECK(ask() == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED); }) == kBroken);
}

TEST_CASE("every call in a broken capture fails until the capture is ended") {
    const Gpu gpu;
    const Stream stream;
    CUgraph graph = nullptr;
    CUstreamCaptureStatus status{};
    const CUdeviceptr block = allocate(kMiB);
    REQUIRE(cuStreamBeginCapture_v2(stream, kGlobal) == CUDA_SUCCESS);
    REQUIRE(cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS);
    CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
    CUdeviceptr other = 0;
    CHECK(cuMemAlloc_v2(&other, kMiB) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    REQUIRE(cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS);
    CHECK(status == CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    CHECK(cuMemsetD8Async(block, 0, kMiB, stream) == kBroken);
    CHECK(cuStreamEndCapture(stream, &graph) == kBroken);
    CHECK(cuMemsetD8Async(block, 0, kMiB, stream) == CUDA_SUCCESS);
    CHECK(cuMemFree_v2(block) == CUDA_SUCCESS);
}

TEST_CASE("captured work runs when the graph is launched, not before") {
    const Gpu gpu;
    const Stream stream;
    const CUdeviceptr block = allocate(kMiB);
    int calls = 0;
    const CUhostFn count = [](void *calls_so_far) { ++*static_cast<int *>(calls_so_far); };
    REQUIRE(cuLaunchHostFunc(stream, count, &calls) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    CHECK(calls == 1);
    REQUIRE(cuMemsetD8_v2(block, 1, kMiB) == CUDA_SUCCESS);
    const Captured graph(stream, [&] {
        REQUIRE(cuMemsetD8Async(block, 2, kMiB, stream) == CUDA_SUCCESS);
        REQUIRE(cuLaunchHostFunc(stream, count, &calls) == CUDA_SUCCESS);
    });
    CHECK(byte_at(block) == 1);
    CHECK(calls == 1);
    const Executable exec(graph);
    run_graph(exec, stream);
    CHECK(byte_at(block) == 2);
    CHECK(calls == 2);
    cuMemFree_v2(block);
}

TEST_CASE("an event forks a capture into another stream, which must join it again") {
    const bool comes_back = GENERATE(true, false);
    const Gpu gpu;
    const Stream stream, other;
    CUgraph graph = nullptr;
    const CUdeviceptr block = allocate(kMiB);
    const Event fork;
    const Event join;
    REQUIRE(cuStreamBeginCapture_v2(stream, kGlobal) == CUDA_SUCCESS);
    REQUIRE(cuEventRecord(fork, stream) == CUDA_SUCCESS);
    REQUIRE(cuStreamWaitEvent(other, fork, 0) == CUDA_SUCCESS);
    REQUIRE(cuMemsetD8Async(block, 2, kMiB, other) == CUDA_SUCCESS);
    if (comes_back) {
        REQUIRE(cuEventRecord(join, other) == CUDA_SUCCESS);
        REQUIRE(cuStreamWaitEvent(stream, join, 0) == CUDA_SUCCESS);
    }
    CHECK(cuStreamEndCapture(stream, &graph) == (comes_back ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_UNJOINED));
    CUstreamCaptureStatus status{};
    REQUIRE(cuStreamIsCapturing(other, &status) == CUDA_SUCCESS);
    CHECK(status == CU_STREAM_CAPTURE_STATUS_NONE);
    if (graph) cuGraphDestroy(graph);
    cuMemFree_v2(block);
}

TEST_CASE("a stream that was forked into a capture does not end it when it is destroyed") {
    const Gpu gpu;
    const Stream stream;
    CUstream other = nullptr;
    CUgraph graph = nullptr;
    CUstreamCaptureStatus status{};
    REQUIRE(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    const Event fork;
    REQUIRE(cuStreamBeginCapture_v2(stream, kGlobal) == CUDA_SUCCESS);
    REQUIRE(cuEventRecord(fork, stream) == CUDA_SUCCESS);
    REQUIRE(cuStreamWaitEvent(other, fork, 0) == CUDA_SUCCESS);
    CHECK(cuStreamDestroy_v2(other) == CUDA_SUCCESS);
    CHECK(cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS);
    CHECK(status != CU_STREAM_CAPTURE_STATUS_NONE);
    cuStreamEndCapture(stream, &graph);
    CHECK(cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS);
    CHECK(status == CU_STREAM_CAPTURE_STATUS_NONE);
    CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
    CHECK(capture_on(stream, kGlobal, [] {}) == CUDA_SUCCESS);
    if (graph) cuGraphDestroy(graph);
}

TEST_CASE("a capture ends with its stream, and with its context") {
    const bool with_context = GENERATE(false, true);
    const Gpu gpu;
    CUcontext own = nullptr;
    CUstream stream = nullptr;
    if (with_context) REQUIRE(cuCtxCreate_v2(&own, 0, gpu.device) == CUDA_SUCCESS);
    REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    REQUIRE(cuStreamBeginCapture_v2(stream, kGlobal) == CUDA_SUCCESS);
    CHECK((with_context ? cuCtxDestroy_v2(own) : cuStreamDestroy_v2(stream)) == CUDA_SUCCESS);
    REQUIRE(cuCtxSetCurrent(gpu.context) == CUDA_SUCCESS);
    // A capture in global mode would break this.
    CUdeviceptr block = 0;
    CHECK(cuMemAlloc_v2(&block, kMiB) == CUDA_SUCCESS);
    CHECK(cuMemFree_v2(block) == CUDA_SUCCESS);
    CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
}

TEST_CASE("an event recorded in a capture cannot be queried") {
    const Gpu gpu;
    const Stream stream;
    const Event event;
    CHECK(capture_on(stream, kRelaxed, [&] {
              REQUIRE(cuEventRecord(event, stream) == CUDA_SUCCESS);
              CHECK(cuEventQuery(event) == CUDA_ERROR_CAPTURED_EVENT);
          }) == kBroken);
}

TEST_CASE("a capture must be ended in its stream, by the thread that began it") {
    const Gpu gpu;
    const Stream stream;
    CUgraph graph = nullptr;
    CHECK(cuStreamBeginCapture_v2(nullptr, kGlobal) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CHECK(cuStreamEndCapture(stream, &graph) == CUDA_ERROR_ILLEGAL_STATE);
    REQUIRE(cuStreamBeginCapture_v2(stream, kGlobal) == CUDA_SUCCESS);
    std::thread([&] {
        cuCtxSetCurrent(gpu.context);
        CHECK(cuStreamEndCapture(stream, &graph) == CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    }).join();
    CHECK(cuStreamEndCapture(stream, &graph) == CUDA_ERROR_ILLEGAL_STATE);  // the wrong thread has ended it
}

TEST_CASE("asking a capturing stream for its device breaks the capture, for its context does not") {
    const Gpu gpu;
    const Stream stream, other;
    CUdevice device = -1;
    CUcontext context = nullptr;
    CHECK(capture_on(stream, kGlobal, [&] { CHECK(cuStreamGetCtx(stream, &context) == CUDA_SUCCESS); }) ==
          CUDA_SUCCESS);
    CHECK(capture_on(stream, kGlobal, [&] { CHECK(cuStreamGetCtx(other, &context) == CUDA_SUCCESS); }) == CUDA_SUCCESS);
    CHECK(context == gpu.context);
    CHECK(capture_on(stream, kGlobal, [&] { CHECK(cuStreamGetDevice(other, &device) == CUDA_SUCCESS); }) ==
          CUDA_SUCCESS);
    const auto mode = GENERATE(kGlobal, kRelaxed);
    CHECK(capture_on(stream, kGlobal, [&] {
              exchange(mode);
              CHECK(cuStreamGetDevice(stream, &device) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
              exchange(kGlobal);
          }) == kBroken);
}

TEST_CASE("a thread's capture mode is exchanged, and global to begin with") {
    const Gpu gpu;
    CHECK(exchange(kRelaxed) == kGlobal);
    CHECK(exchange(kThreadLocal) == kRelaxed);
    CHECK(exchange(kGlobal) == kThreadLocal);
}

TEST_CASE(
    "even reading or setting a pool's attribute breaks another thread's global capture, unless the thread is relaxed") {
    const Gpu gpu;
    uint64_t value = 0, threshold = 0;
    const CUmemoryPool pool = default_pool();
    const auto read = [&] { return cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &value); };
    CHECK(capture_meanwhile(gpu, kGlobal, kGlobal, [&] { read(); }) == kBroken);
    CHECK(capture_meanwhile(gpu, kGlobal, kRelaxed, [&] { CHECK(read() == CUDA_SUCCESS); }) == CUDA_SUCCESS);
    const auto set = [&] { return cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold); };
    CHECK(capture_meanwhile(gpu, kGlobal, kGlobal, [&] { set(); }) == kBroken);
    CHECK(capture_meanwhile(gpu, kGlobal, kRelaxed, [&] { CHECK(set() == CUDA_SUCCESS); }) == CUDA_SUCCESS);
}

TEST_CASE("where a stream-ordered allocation breaks no capture, reading its pool's attribute breaks none") {
    const CUstreamCaptureMode capture = GENERATE(kGlobal, kThreadLocal, kRelaxed);
    const CUstreamCaptureMode thread = GENERATE(kGlobal, kThreadLocal, kRelaxed);
    const bool same_thread = GENERATE(false, true);
    CAPTURE(capture, thread, same_thread);
    const Gpu gpu;
    const Stream captured, other;
    CUmemoryPool pool = nullptr;
    CUdeviceptr block = 0;
    uint64_t value = 0;
    REQUIRE(cuDeviceGetMemPool(&pool, 0) == CUDA_SUCCESS);
    CUresult allocated = CUDA_SUCCESS, read = CUDA_SUCCESS;
    const auto allocate_and_read = [&] {
        allocated = cuMemAllocAsync(&block, kMiB, other);
        if (allocated == CUDA_SUCCESS) read = cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &value);
    };
    const auto in_same_thread = [&] {
        exchange(thread);
        allocate_and_read();
        exchange(kGlobal);
    };
    const CUresult end = same_thread ? capture_on(captured, capture, in_same_thread)
                                     : capture_meanwhile(gpu, capture, thread, allocate_and_read);
    CHECK(read == CUDA_SUCCESS);
    CHECK((allocated == CUDA_SUCCESS) == (end == CUDA_SUCCESS));
    if (capture == kRelaxed || thread == kRelaxed) CHECK(allocated == CUDA_SUCCESS);  // so that some cases do allocate
    if (block) CHECK(cuMemFreeAsync(block, other) == CUDA_SUCCESS);
    CHECK(cuStreamSynchronize(other) == CUDA_SUCCESS);
}

TEST_CASE("these calls of a capturing thread do not break its capture, in any mode") {
    const Gpu gpu;
    const Stream stream;
    const Module module(kSmallImage);
    const CUfunction function = module.function("small");
    size_t first = 0, second = 0;
    uint64_t bytes = 0;
    int value = 0;
    CUfunctionLoadingState state{};
    static constexpr int kCalls = 7;
    const std::function<CUresult()> calls[kCalls] = {
        [&] { return cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &bytes); },
        [&] { return cuDeviceGraphMemTrim(0); },
        [&] { return cuCtxGetLimit(&first, CU_LIMIT_STACK_SIZE); },
        [&] { return cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, function); },
        [&] { return cuFuncLoad(function); },
        [&] { return cuFuncIsLoaded(&state, function); },
        [&] { return cuMemGetInfo_v2(&first, &second); },
    };
    const auto mode = GENERATE(kGlobal, kRelaxed);
    const auto which = GENERATE(range(0, kCalls));
    CAPTURE(which);
    CHECK(capture_on(stream, kGlobal, [&] {
              exchange(mode);
              CHECK(calls[which]() == CUDA_SUCCESS);
              exchange(kGlobal);
          }) == CUDA_SUCCESS);
}
