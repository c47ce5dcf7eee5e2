// The simulated machine's promises beyond the driver's contract (tests/sim/sim.h): faults, forks, latencies, checked
// handles, external memory, older drivers. Other cases run those tagged [.child], in processes of their own.
#include "sim.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <future>
#include <thread>

#include "contract.hpp"

using namespace contract;

TEST_CASE("the child: of this name does not hold", "[.child]") { FAIL("as it is meant to"); }

TEST_CASE("run_case reports a case that fails, and one that does not exist") {
    CHECK(run_case("the child: of this name does not hold") != 0);
    CHECK(run_case("the child: of this name is not there") != 0);
}

TEST_CASE("the child: the second cuMemAlloc fails", "[.child]") {
    const Gpu gpu;
    CUdeviceptr first = 0, second = 0, third = 0;
    CHECK(cuMemAlloc_v2(&first, kMiB) == CUDA_SUCCESS);
    CHECK(cuMemAlloc_v2(&second, kMiB) == CUDA_ERROR_UNKNOWN);
    CHECK(second == 0);
    CHECK(cuMemAlloc_v2(&third, kMiB) == CUDA_SUCCESS);
    CHECK(cuMemFree_v2(first) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(cuMemFree_v2(first) == CUDA_SUCCESS);
    CHECK(curb_sim_calls("cuMemAlloc_v2") == 3);
}

TEST_CASE("the child: the third call of all fails", "[.child]") {
    int count = 0;
    CHECK(cuInit(0) == CUDA_SUCCESS);
    CHECK(cuDeviceGetCount(&count) == CUDA_SUCCESS);
    CHECK(cuDeviceGetCount(&count) == CUDA_ERROR_NO_DEVICE);
    CHECK(cuDeviceGetCount(&count) == CUDA_SUCCESS);
}

TEST_CASE("a fault is the k-th call of a name, which then does nothing") {
    CHECK(run_case("the child: the second cuMemAlloc fails", {"CURB_SIM_FAULT=cuMemAlloc_v2:2:999,cuMemFree_v2:1:2"}) ==
          0);
    CHECK(run_case("the child: the third call of all fails", {"CURB_SIM_FAULT=*:3:100"}) == 0);
}

TEST_CASE("in a forked child every call returns CUDA_ERROR_NOT_INITIALIZED") {
    const Gpu gpu;
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        CUdeviceptr block = 0;
        int count = 0;
        const bool refused = cuMemAlloc_v2(&block, kMiB) == CUDA_ERROR_NOT_INITIALIZED &&
                             cuDeviceGetCount(&count) == CUDA_ERROR_NOT_INITIALIZED &&
                             cuInit(0) == CUDA_ERROR_NOT_INITIALIZED && curb_sim_held(0) == 0;
        ::_exit(refused ? 0 : 1);
    }
    CHECK(exit_status_of(child) == 0);
    CHECK(gpu.taken() == 0);
}

IN_A_PROCESS("a child forked before cuInit has a driver of its own", "", State().variable()) {
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        CUcontext context = nullptr;
        const bool works = cuInit(0) == CUDA_SUCCESS && cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS;
        ::_exit(works ? 0 : 1);
    }
    CHECK(exit_status_of(child) == 0);
    const Gpu gpu;
    CHECK(device_used() == kContext);  // the child's context is gone with it
}

IN_A_PROCESS("with the card's latency calls take the card's time", "", "CURB_SIM_LATENCY=h100") {
    const Gpu gpu;
    const auto before = std::chrono::steady_clock::now();
    allocate(8 * kGiB);  // less than a millisecond otherwise
    CHECK(std::chrono::steady_clock::now() - before >= std::chrono::microseconds(24'570));
}

IN_A_PROCESS("copies in one direction wait for each other, and those in two do not", "", "CURB_SIM_LATENCY=h100") {
    constexpr std::size_t kMany = 256 * kMiB, kFew = 4 * kKiB;
    const Gpu gpu;
    const Stream one, other;
    const CUdeviceptr block = allocate(kMany);
    void *pinned = nullptr;
    REQUIRE(cuMemHostAlloc(&pinned, kMany, 0) == CUDA_SUCCESS);
    const auto is_under_way = [&] { return cuStreamQuery(one) == CUDA_ERROR_NOT_READY; };

    REQUIRE(cuMemcpyDtoHAsync_v2(pinned, block, kMany, one) == CUDA_SUCCESS);
    REQUIRE(cuMemcpyDtoHAsync_v2(pinned, block, kFew, other) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(other) == CUDA_SUCCESS);
    CHECK_FALSE(is_under_way());
    CHECK(is_seen_in_progress([&] {
        REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
        REQUIRE(cuMemcpyDtoHAsync_v2(pinned, block, kMany, one) == CUDA_SUCCESS);
        REQUIRE(cuMemcpyHtoDAsync_v2(block, pinned, kFew, other) == CUDA_SUCCESS);
        REQUIRE(cuStreamSynchronize(other) == CUDA_SUCCESS);
        return is_under_way();
    }));
    CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
    CHECK(cuMemFreeHost(pinned) == CUDA_SUCCESS);
    CHECK(cuMemFree_v2(block) == CUDA_SUCCESS);
}

TEST_CASE("a copy of pageable memory that loses its memory meanwhile fails, and one of pinned memory is not held up") {
    const Gpu gpu;
    const CUdeviceptr block = allocate(16 * kMiB);
    std::vector<char> pageable(16 * kMiB);
    void *pinned = nullptr;
    REQUIRE(cuMemHostAlloc(&pinned, 16 * kMiB, 0) == CUDA_SUCCESS);
    curb_sim_hold_copies(1);
    CUdeviceptr to = reinterpret_cast<CUdeviceptr>(pinned), from = block;
    size_t bytes = 16 * kMiB;
    CHECK(cuMemcpyBatchAsync_v2(&to, &from, &bytes, 1, nullptr, nullptr, 0, nullptr) == CUDA_SUCCESS);
    REQUIRE(cuMemsetD8_v2(block, 1, 1) == CUDA_SUCCESS);
    auto copy = std::async(std::launch::async, [&] {
        REQUIRE(cuCtxSetCurrent(gpu.context) == CUDA_SUCCESS);
        return cuMemcpyDtoH_v2(pageable.data(), block, pageable.size());
    });
    while (*static_cast<volatile char *>(pageable.data()) != 1) std::this_thread::yield();
    REQUIRE(cuMemFree_v2(block) == CUDA_SUCCESS);
    curb_sim_hold_copies(0);
    CHECK(copy.get() == CUDA_ERROR_ILLEGAL_ADDRESS);
    REQUIRE(cuMemFreeHost(pinned) == CUDA_SUCCESS);
}

TEST_CASE("the simulator's figures in the process agree with NVML's") {
    const Gpu gpu;
    allocate(4 * kMiB);
    CHECK(static_cast<int64_t>(curb_sim_held(0)) == held());
    CHECK(curb_sim_held(7) == 0);
    CHECK(curb_sim_calls("cuNoSuchCall") == 0);
}

TEST_CASE("stale and foreign handles are refused, whatever their type") {
    const Gpu gpu;
    CUstream stream = nullptr;
    CUdeviceptr block = 0;
    REQUIRE(cuStreamCreate(&stream, 0) == CUDA_SUCCESS);
    REQUIRE(cuStreamDestroy_v2(stream) == CUDA_SUCCESS);
    const auto as = [&]<class Handle>(Handle) { return reinterpret_cast<Handle>(stream); };
    CHECK(cuStreamSynchronize(stream) == CUDA_ERROR_INVALID_HANDLE);
    CHECK(cuMemAllocAsync(&block, kMiB, stream) == CUDA_ERROR_INVALID_HANDLE);
    CHECK(cuEventQuery(as(CUevent{})) == CUDA_ERROR_INVALID_HANDLE);
    CHECK(cuMemPoolTrimTo(as(CUmemoryPool{}), 0) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuCtxSetCurrent(as(CUcontext{})) == CUDA_ERROR_INVALID_CONTEXT);
    CHECK(cuArrayDestroy(as(CUarray{})) == CUDA_ERROR_INVALID_HANDLE);
    CHECK(cuGraphDestroy(as(CUgraph{})) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuGraphExecDestroy(as(CUgraphExec{})) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuModuleUnload(as(CUmodule{})) == CUDA_ERROR_INVALID_HANDLE);
    CHECK(run_kernel(as(CUfunction{})) == CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE("handles of a destroyed context are refused") {
    const Gpu gpu;
    CUarray array = nullptr;
    CUstream stream = nullptr;
    CUevent event = nullptr;
    CUmodule module = nullptr;
    const CUDA_ARRAY_DESCRIPTOR descriptor{64, 64, CU_AD_FORMAT_FLOAT, 1};
    CUcontext made = create_context();
    REQUIRE(cuArrayCreate_v2(&array, &descriptor) == CUDA_SUCCESS);
    REQUIRE(cuStreamCreate(&stream, 0) == CUDA_SUCCESS);
    REQUIRE(cuEventCreate(&event, 0) == CUDA_SUCCESS);
    REQUIRE(cuModuleLoadData(&module, "image") == CUDA_SUCCESS);
    REQUIRE(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
    REQUIRE(cuCtxDestroy_v2(made) == CUDA_SUCCESS);
    CHECK(cuArrayDestroy(array) == CUDA_ERROR_INVALID_HANDLE);
    CHECK(cuStreamSynchronize(stream) == CUDA_ERROR_INVALID_HANDLE);
    CHECK(cuEventSynchronize(event) == CUDA_ERROR_INVALID_HANDLE);
    CHECK(cuModuleUnload(module) == CUDA_ERROR_INVALID_HANDLE);
    CUdeviceptr block = 0;
    CHECK(cuMemAlloc_v2(&block, kMiB) == CUDA_SUCCESS);  // nothing is being captured any more
    CHECK(cuMemFree_v2(block) == CUDA_SUCCESS);
    CHECK(gpu.taken() == 0);
}

// Returns whether the next object gets the handle that was destroyed last. Checks that two live ones differ.
template <class Handle, class Make, class End>
static bool comes_again(Make make, End end) {
    Handle first{}, second{}, third{};
    REQUIRE(make(&first) == CUDA_SUCCESS);
    REQUIRE(make(&second) == CUDA_SUCCESS);
    CHECK(first != second);
    REQUIRE(end(second) == CUDA_SUCCESS);
    REQUIRE(make(&third) == CUDA_SUCCESS);
    for (const Handle handle : {third, first}) REQUIRE(end(handle) == CUDA_SUCCESS);  // contexts: the current one first
    return third == second;
}

static void handles_come_again(bool again) {
    const Gpu gpu;
    const CUmemPoolProps in_device = pool_on(CU_MEM_LOCATION_TYPE_DEVICE, 0);
    const CUDA_ARRAY_DESCRIPTOR small{64, 64, CU_AD_FORMAT_FLOAT, 1};
    const CUDA_ARRAY3D_DESCRIPTOR levels{64, 64, 0, CU_AD_FORMAT_FLOAT, 1, 0};
    const CUmemAllocationProp physical = on_device(0);
    CUgraph graph = nullptr;
    REQUIRE(cuGraphCreate(&graph, 0) == CUDA_SUCCESS);
    const auto context = [](auto *out) { return cuCtxCreate_v2(out, 0, 0); };
    const auto stream = [](auto *out) { return cuStreamCreate(out, 0); };
    const auto event = [](auto *out) { return cuEventCreate(out, 0); };
    const auto pool = [&](auto *out) { return cuMemPoolCreate(out, &in_device); };
    const auto array = [&](auto *out) { return cuArrayCreate_v2(out, &small); };
    const auto mipmapped = [&](auto *out) { return cuMipmappedArrayCreate(out, &levels, 2); };
    const auto physical_memory = [&](auto *out) { return cuMemCreate(out, 2 * kMiB, &physical, 0); };
    const auto empty_graph = [](auto *out) { return cuGraphCreate(out, 0); };
    const auto executable = [&](auto *out) { return cuGraphInstantiateWithFlags(out, graph, 0); };
    const auto image = [](auto *out) { return cuModuleLoadData(out, "image"); };
    CHECK(comes_again<CUcontext>(context, cuCtxDestroy_v2) == again);
    CHECK(comes_again<CUstream>(stream, cuStreamDestroy_v2) == again);
    CHECK(comes_again<CUevent>(event, cuEventDestroy_v2) == again);
    CHECK(comes_again<CUmemoryPool>(pool, cuMemPoolDestroy) == again);
    CHECK(comes_again<CUarray>(array, cuArrayDestroy) == again);
    CHECK(comes_again<CUmipmappedArray>(mipmapped, cuMipmappedArrayDestroy) == again);
    CHECK(comes_again<CUmemGenericAllocationHandle>(physical_memory, cuMemRelease) == again);
    CHECK(comes_again<CUgraph>(empty_graph, cuGraphDestroy) == again);
    CHECK(comes_again<CUgraphExec>(executable, cuGraphExecDestroy) == again);
    CHECK(comes_again<CUmodule>(image, cuModuleUnload) == again);
    REQUIRE(cuGraphDestroy(graph) == CUDA_SUCCESS);
    CUmodule module = nullptr;
    CUfunction before = nullptr, after = nullptr;
    REQUIRE(cuModuleLoadData(&module, "image") == CUDA_SUCCESS);
    REQUIRE(cuModuleGetFunction(&before, module, "kernel") == CUDA_SUCCESS);
    REQUIRE(cuModuleUnload(module) == CUDA_SUCCESS);
    REQUIRE(cuModuleLoadData(&module, "image") == CUDA_SUCCESS);
    REQUIRE(cuModuleGetFunction(&after, module, "kernel") == CUDA_SUCCESS);
    CHECK((after == before) == again);
    CHECK(cuModuleUnload(module) == CUDA_SUCCESS);
    CHECK(gpu.taken() == 0);
}

TEST_CASE("the next object gets the handle that was freed last") { handles_come_again(true); }

IN_A_PROCESS("with CURB_SIM_HANDLES=fresh no handle is reused", "", "CURB_SIM_HANDLES=fresh") {
    handles_come_again(false);
}

TEST_CASE("after a sticky error every call fails, except those that the driver still answers") {
    const Gpu gpu;
    CUdeviceptr another = 0;
    CUcontext current = nullptr;
    const char *name = nullptr;
    int count = 0;
    const int64_t others = held() - kContext;
    const CUdeviceptr block = allocate(kMiB);
    curb_sim_break(CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK(cuMemAlloc_v2(&another, kMiB) == CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK(cuMemFree_v2(block) == CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK(cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK(cuCtxGetCurrent(&current) == CUDA_SUCCESS);
    CHECK(cuDeviceGetCount(&count) == CUDA_SUCCESS);
    CHECK(cuGetErrorName(CUDA_ERROR_ILLEGAL_ADDRESS, &name) == CUDA_SUCCESS);
    REQUIRE(cuDevicePrimaryCtxReset_v2(0) == CUDA_SUCCESS);
    CHECK(held() == others);
    CHECK(cuDevicePrimaryCtxRetain(&current, 0) == CUDA_ERROR_ILLEGAL_ADDRESS);
    curb_sim_break(CUDA_SUCCESS);
    REQUIRE(cuDevicePrimaryCtxRetain(&current, 0) == CUDA_SUCCESS);
    CHECK(cuMemAlloc_v2(&another, kMiB) == CUDA_SUCCESS);
}

TEST_CASE("memory mapped into a sparse array stays until the array goes, its handle released or not") {
    const Gpu gpu;
    const CUDA_ARRAY3D_DESCRIPTOR descriptor{4096, 4096, 0, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_SPARSE};
    CUarrayMapInfo info{};
    REQUIRE(cuArray3DCreate_v2(&info.resource.array, &descriptor) == CUDA_SUCCESS);
    const auto handle = create(2 * kMiB);
    info.resourceType = CU_RESOURCE_TYPE_ARRAY;
    info.memOperationType = CU_MEM_OPERATION_TYPE_MAP;
    info.memHandle.memHandle = handle;
    info.deviceBitMask = 1;
    REQUIRE(cuMemMapArrayAsync(&info, 1, nullptr) == CUDA_SUCCESS);
    REQUIRE(cuMemRelease(handle) == CUDA_SUCCESS);
    CHECK(gpu.taken() == 2 * kMiB);
    if (GENERATE(true, false)) {
        info.memOperationType = CU_MEM_OPERATION_TYPE_UNMAP;
        REQUIRE(cuMemMapArrayAsync(&info, 1, nullptr) == CUDA_SUCCESS);
        CHECK(gpu.taken() == 0);
    }
    REQUIRE(cuArrayDestroy(info.resource.array) == CUDA_SUCCESS);
    CHECK(gpu.taken() == 0);
}

TEST_CASE("imported external memory has an address, is not charged, and is freed by cuMemFree") {
    const Gpu gpu;
    const int file = ::memfd_create("external", 0);
    REQUIRE(file >= 0);
    REQUIRE(::ftruncate(file, 4 * kMiB) == 0);
    REQUIRE(::pwrite(file, "\x42", 1, 5000) == 1);
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC import{};
    import.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD;
    import.handle.fd = file;
    import.size = 4 * kMiB;
    CUexternalMemory memory = nullptr;
    REQUIRE(cuImportExternalMemory(&memory, &import) == CUDA_SUCCESS);
    CUDA_EXTERNAL_MEMORY_BUFFER_DESC buffer{};
    buffer.offset = 5000;
    buffer.size = kMiB;
    CUdeviceptr start = 0;
    REQUIRE(cuExternalMemoryGetMappedBuffer(&start, memory, &buffer) == CUDA_SUCCESS);
    REQUIRE(cuDestroyExternalMemory(memory) == CUDA_SUCCESS);
    CHECK(byte_at(start) == 0x42);
    CHECK(gpu.taken() == 0);
    REQUIRE(cuMemFree_v2(start) == CUDA_SUCCESS);
    CHECK(cuMemFree_v2(start) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("older drivers lack later functions, and return their own version") {
    struct Version {
        const char *folder;
        int number;
        std::vector<const char *> has, lacks;
    };
    const auto version =
        GENERATE(Version{"11.4",
                         11040,
                         {"cuCtxCreate_v3", "cuGraphAddMemAllocNode"},
                         {"cuGetProcAddress_v2", "cuLibraryLoadData", "cuLaunchKernelEx", "cuLaunchKernelEx_ptsz"}},
                 Version{"12.2",
                         12020,
                         {"cuGetProcAddress_v2", "cuGraphAddNode", "cuLaunchKernelEx_ptsz"},
                         {"cuGreenCtxCreate", "cuGraphAddNode_v2", "cuStreamGetDevice", "cuCtxCreate_v4",
                          "cuCheckpointProcessLock"}},
                 Version{"12.8",
                         12080,
                         {"cuGreenCtxCreate", "cuStreamGetDevice", "cuStreamGetDevice_ptsz", "cuCtxCreate_v4",
                          "cuCheckpointProcessLock", "cuCheckpointProcessGetState"},
                         {"cuCtxGetDevice_v2", "cuMemGetMemPool"}});
    CAPTURE(version.folder);
    const std::string file = environment("SIM") + "/" + version.folder + "/libcuda.so.1";
    void *driver = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    REQUIRE(driver);
    for (const char *name : version.has) CHECK(::dlsym(driver, name));
    for (const char *name : version.lacks) CHECK_FALSE(::dlsym(driver, name));
    int number = 0;
    reinterpret_cast<decltype(&cuDriverGetVersion)>(::dlsym(driver, "cuDriverGetVersion"))(&number);
    CHECK(number == version.number);  // the driver stays loaded: it never destroys its state
    const auto look_up = reinterpret_cast<decltype(&cuGetProcAddress)>(::dlsym(driver, "cuGetProcAddress"));
    void *found = nullptr;
    CHECK(look_up("cuMemGetMemPool", &found, 13000, 0) == CUDA_SUCCESS);
    CHECK(found == nullptr);
    CHECK(look_up("cuCtxCreate", &found, 13000, 0) == CUDA_SUCCESS);
    CHECK(found == ::dlsym(driver, version.number < 12050 ? "cuCtxCreate_v3" : "cuCtxCreate_v4"));
}

TEST_CASE("many threads at once leave the books empty") {
    const Gpu gpu;
    std::atomic<int> refused = 0;
    const auto work = [&] {
        const auto call = [&](CUresult result) { refused += result != CUDA_SUCCESS; };
        call(cuCtxSetCurrent(gpu.context));
        for (uint64_t round = 1; round <= 200; ++round) {
            CUdeviceptr plain = 0, ordered = 0;
            call(cuMemAlloc_v2(&plain, round * 10000));
            call(cuMemAllocAsync_ptsz(&ordered, round * 10000, nullptr));
            call(cuMemsetD8Async_ptsz(ordered, 1, round, nullptr));
            call(cuMemFreeAsync_ptsz(ordered, nullptr));
            call(cuMemFree_v2(plain));
        }
        call(cuStreamSynchronize_ptsz(nullptr));
    };
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) threads.emplace_back(work);
    for (std::thread &thread : threads) thread.join();
    CHECK(refused == 0);
    REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
    CHECK(gpu.taken() == 0);
}
