// What the simulated machine promises beyond the driver's contract (tests/sim/sim.h): its environment, machines shared
// by processes, faults, forks, latencies. Cases tagged [.child] are run by the others, in processes of their own.
#include "sim.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "contract.hpp"
#include "nvml_abi.h"

using namespace contract;

namespace {

constexpr int64_t kContext = 518 * kMiB;
constexpr int64_t kReserved = 615 * kMiB;  // of the device, by NVML alone

// A name for a state file, gone at the end.
class State {
  public:
    State() {
        const int file = ::mkstemp(path_);
        REQUIRE(file >= 0);
        ::close(file);
    }
    ~State() { ::unlink(path_); }
    State(const State &) = delete;
    State &operator=(const State &) = delete;
    std::string path() const { return path_; }
    std::string variable() const { return std::string("CURB_SIM_STATE=") + path_; }

  private:
    char path_[32] = "/tmp/curb-sim-state-XXXXXX";
};

std::string environment(const char *name) {
    const char *value = std::getenv(name);
    REQUIRE(value);
    return value;
}

std::string hex(const void *bytes, size_t size) {
    std::string text;
    for (size_t i = 0; i < size; ++i) {
        char digits[3];
        std::snprintf(digits, sizeof digits, "%02x", unsigned{static_cast<const unsigned char *>(bytes)[i]});
        text += digits;
    }
    return text;
}

void unhex(const std::string &text, void *bytes) {
    for (size_t i = 0; i * 2 < text.size(); ++i)
        static_cast<unsigned char *>(bytes)[i] =
            static_cast<unsigned char>(std::stoi(text.substr(i * 2, 2), nullptr, 16));
}

// A descriptor that a child inherits under the same number.
int inheritable(int file) {
    REQUIRE(::fcntl(file, F_SETFD, 0) == 0);
    return file;
}

std::string output_of(const std::string &command) {
    std::string text;
    FILE *pipe = ::popen(command.c_str(), "r");
    REQUIRE(pipe);
    char part[4096];
    while (std::fgets(part, sizeof part, pipe)) text += part;
    CHECK(::pclose(pipe) == 0);
    return text;
}

}  // namespace

TEST_CASE("the child: two GPUs of 16 GiB", "[.child]") {
    const Gpu gpu;
    int count = 0;
    size_t free = 0, total = 0;
    REQUIRE(cuDeviceGetCount(&count) == CUDA_SUCCESS);
    CHECK(count == 2);
    REQUIRE(cuMemGetInfo_v2(&free, &total) == CUDA_SUCCESS);
    CHECK(total == 16 * kGiB);
    CHECK(free == 16 * kGiB - kContext);
    CUcontext other = nullptr;
    REQUIRE(cuDevicePrimaryCtxRetain(&other, 1) == CUDA_SUCCESS);
    CHECK(curb_sim_held(1) == kContext);
    int peer = 0;
    REQUIRE(cuDeviceCanAccessPeer(&peer, 0, 1) == CUDA_SUCCESS);
    CHECK(peer == 1);
    REQUIRE(cuDevicePrimaryCtxRelease_v2(1) == CUDA_SUCCESS);
    CHECK(curb_sim_held(1) == 0);
}

TEST_CASE("the environment says how many devices there are and of what size") {
    CHECK(run_case("the child: two GPUs of 16 GiB", {"CURB_SIM_GPUS=2", "CURB_SIM_MEMORY=16GiB"}) == 0);
    CHECK(run_case("the child: two GPUs of 16 GiB", {"CURB_SIM_GPUS=2", "CURB_SIM_MEMORY=16384MiB"}) == 0);
    CHECK(run_case("the child: two GPUs of 16 GiB", {"CURB_SIM_GPUS=2", "CURB_SIM_MEMORY=17179869184"}) == 0);
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

TEST_CASE("in a forked child every call says that the driver is not initialised") {
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
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0));
    CHECK(gpu.taken() == 0);
}

TEST_CASE("a child forked before cuInit has a driver of its own") {
    const State state;
    CHECK(run_case("the child: forks first", {state.variable()}) == 0);
}

TEST_CASE("the child: forks first", "[.child]") {
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        CUcontext context = nullptr;
        const bool works = cuInit(0) == CUDA_SUCCESS && cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS;
        ::_exit(works ? 0 : 1);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0));
    const Gpu gpu;
    CHECK(device_used() == kContext);  // the child's went with it
}

// Processes that share a machine.

TEST_CASE("the child: sees the other's GiB through CUDA and NVML", "[.child]") {
    const Gpu gpu;
    const auto other = static_cast<unsigned>(std::stoi(environment("OTHER")));
    CHECK(device_used() == kGiB + 2 * kContext);
    CHECK(held() == kContext);
    nvmlDevice_t device = nullptr;
    nvmlProcessInfo_t processes[8];
    unsigned count = 8;
    REQUIRE(nvmlInit_v2() == NVML_SUCCESS);
    REQUIRE(nvmlDeviceGetHandleByIndex_v2(0, &device) == NVML_SUCCESS);
    REQUIRE(nvmlDeviceGetComputeRunningProcesses_v3(device, &count, processes) == NVML_SUCCESS);
    REQUIRE(count == 2);
    const nvmlProcessInfo_t &its = processes[0].pid == other ? processes[0] : processes[1];
    CHECK(its.pid == other);
    CHECK(its.usedGpuMemory == kGiB + kContext);
    CUdeviceptr block = 0;
    CHECK(cuMemAlloc_v2(&block, 79 * kGiB) == CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_CASE("the child: NVML alone sees the other's GiB", "[.child]") {
    nvmlDevice_t device = nullptr;
    nvmlMemory_t memory{};
    REQUIRE(nvmlInit_v2() == NVML_SUCCESS);
    REQUIRE(nvmlDeviceGetHandleByIndex_v2(0, &device) == NVML_SUCCESS);
    REQUIRE(nvmlDeviceGetMemoryInfo(device, &memory) == NVML_SUCCESS);
    CHECK(memory.used == kGiB + kContext + kReserved);
    CHECK(memory.free == memory.total - memory.used);
}

TEST_CASE("the child: NVML lists nobody", "[.child]") {
    nvmlDevice_t device = nullptr;
    unsigned count = 0;
    REQUIRE(nvmlInit_v2() == NVML_SUCCESS);
    REQUIRE(nvmlDeviceGetHandleByIndex_v2(0, &device) == NVML_SUCCESS);
    CHECK(nvmlDeviceGetComputeRunningProcesses_v3(device, &count, nullptr) == NVML_SUCCESS);
    CHECK(count == 0);
}

TEST_CASE("the child: takes 2 GiB and is killed", "[.child]") {
    const Gpu gpu;
    CUdeviceptr block = 0;
    REQUIRE(cuMemAlloc_v2(&block, 2 * kGiB) == CUDA_SUCCESS);
    CHECK(device_used() == 3 * kGiB + 2 * kContext);
    std::raise(SIGKILL);
}

TEST_CASE("the child: holds a GiB on a shared machine", "[.child]") {
    const Gpu gpu;
    CUdeviceptr block = 0;
    REQUIRE(cuMemAlloc_v2(&block, kGiB) == CUDA_SUCCESS);
    const std::string me = "OTHER=" + std::to_string(::getpid());
    CHECK(run_case("the child: sees the other's GiB through CUDA and NVML", {me}) == 0);
    CHECK(run_case("the child: NVML alone sees the other's GiB") == 0);
    CHECK(run_case("the child: NVML lists nobody", {"CURB_SIM_NVML=nopids"}) == 0);
    CHECK(run_case("the child: takes 2 GiB and is killed") == 128 + SIGKILL);
    CHECK(device_used() == kGiB + kContext);

    const std::string books = output_of(environment("BOOKS") + " " + environment("CURB_SIM_STATE"));
    CHECK_THAT(books, contains("{\"devices\":[{\"total\":85899345920,\"used\":" + std::to_string(kGiB + kContext)));
    CHECK_THAT(books, contains("\"pid\":" + std::to_string(::getpid())));
    CHECK_THAT(books, contains("\"context\":" + std::to_string(kContext) + ",\"plain\":" + std::to_string(kGiB)));
}

TEST_CASE("processes that name one state file share the machine") {
    const State state;
    CHECK(run_case("the child: holds a GiB on a shared machine", {state.variable()}) == 0);
    const std::string books = output_of(environment("BOOKS") + " " + state.path());
    CHECK(books == "{\"devices\":[{\"total\":85899345920,\"used\":0,\"overlaps\":0,\"processes\":[]}]}\n");
}

TEST_CASE("the books do not open what is no state file") {
    const State state;  // empty
    CHECK(std::system((environment("BOOKS") + " " + state.path() + " 2>/dev/null").c_str()) != 0);
    CHECK(std::system((environment("BOOKS") + " /no/such/file 2>/dev/null").c_str()) != 0);
}

// Memory handed to another process.

TEST_CASE("the child: imports a handle", "[.child]") {
    const Gpu gpu;
    const int file = std::stoi(environment("FILE_NUMBER"));
    const CUmemAccessDesc access = read_write(0);
    CUmemGenericAllocationHandle handle = 0;
    CUdeviceptr start = 0;
    unsigned char byte = 0;
    REQUIRE(cuMemImportFromShareableHandle(&handle, as_pointer(file), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) ==
            CUDA_SUCCESS);
    CHECK(gpu.taken() == 0);
    REQUIRE(cuMemAddressReserve(&start, 4 * kMiB, 0, 0, 0) == CUDA_SUCCESS);
    REQUIRE(cuMemMap(start, 4 * kMiB, 0, handle, 0) == CUDA_SUCCESS);
    REQUIRE(cuMemSetAccess(start, 4 * kMiB, &access, 1) == CUDA_SUCCESS);
    REQUIRE(cuMemcpyDtoH_v2(&byte, start, 1) == CUDA_SUCCESS);
    CHECK(byte == 0x42);
    CHECK(cuMemsetD8_v2(start, 0x43, 1) == CUDA_SUCCESS);
}

TEST_CASE("VMM memory exported to another process shows it the same bytes and is not charged there") {
    const State state;
    CHECK(run_case("the child: exports a handle", {state.variable()}) == 0);
}

TEST_CASE("the child: exports a handle", "[.child]") {
    const Gpu gpu;
    const CUmemAllocationProp properties = on_device(0, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    const CUmemAccessDesc access = read_write(0);
    CUmemGenericAllocationHandle handle = 0;
    CUdeviceptr start = 0;
    int file = -1;
    unsigned char byte = 0;
    REQUIRE(cuMemCreate(&handle, 4 * kMiB, &properties, 0) == CUDA_SUCCESS);
    REQUIRE(cuMemAddressReserve(&start, 4 * kMiB, 0, 0, 0) == CUDA_SUCCESS);
    REQUIRE(cuMemMap(start, 4 * kMiB, 0, handle, 0) == CUDA_SUCCESS);
    CHECK(cuMemsetD8_v2(start, 0x42, kMiB) == CUDA_ERROR_INVALID_VALUE);  // no access yet
    REQUIRE(cuMemSetAccess(start, 4 * kMiB, &access, 1) == CUDA_SUCCESS);
    REQUIRE(cuMemsetD8_v2(start, 0x42, kMiB) == CUDA_SUCCESS);
    REQUIRE(cuMemExportToShareableHandle(&file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) == CUDA_SUCCESS);
    CHECK(run_case("the child: imports a handle", {"FILE_NUMBER=" + std::to_string(inheritable(file))}) == 0);
    REQUIRE(cuMemcpyDtoH_v2(&byte, start, 1) == CUDA_SUCCESS);
    CHECK(byte == 0x43);
}

TEST_CASE("the child: opens an IPC handle", "[.child]") {
    const Gpu gpu;
    CUipcMemHandle handle;
    CUdeviceptr start = 0;
    unsigned char byte = 0;
    unhex(environment("HANDLE"), &handle);
    REQUIRE(cuIpcOpenMemHandle_v2(&start, handle, 1) == CUDA_SUCCESS);
    CHECK(gpu.taken() == 0);
    REQUIRE(cuMemcpyDtoH_v2(&byte, start, 1) == CUDA_SUCCESS);
    CHECK(byte == 0x42);
    CHECK(cuMemsetD8_v2(start, 0x43, 1) == CUDA_SUCCESS);
    CHECK(cuMemFree_v2(start) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuIpcCloseMemHandle(start) == CUDA_SUCCESS);
    CHECK(cuMemcpyDtoH_v2(&byte, start, 1) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("plain memory shared over IPC is the same memory in both processes") {
    const uint64_t size = GENERATE(4 * kKiB, 5 * kMiB);  // in a shared granule, in its own
    const Gpu gpu;
    CUdeviceptr start = 0, opened = 0;
    CUipcMemHandle handle;
    unsigned char byte = 0;
    REQUIRE(cuMemAlloc_v2(&start, size) == CUDA_SUCCESS);
    REQUIRE(cuMemsetD8_v2(start, 0x42, size) == CUDA_SUCCESS);
    REQUIRE(cuIpcGetMemHandle(&handle, start) == CUDA_SUCCESS);
    CHECK(cuIpcOpenMemHandle_v2(&opened, handle, 1) == CUDA_ERROR_INVALID_CONTEXT);  // its own
    CHECK(run_case("the child: opens an IPC handle", {"HANDLE=" + hex(&handle, sizeof handle)}) == 0);
    REQUIRE(cuMemcpyDtoH_v2(&byte, start, 1) == CUDA_SUCCESS);
    CHECK(byte == 0x43);
    REQUIRE(cuMemcpyDtoH_v2(&byte, start + size - 1, 1) == CUDA_SUCCESS);
    CHECK(byte == 0x42);
    CHECK(cuMemFree_v2(start) == CUDA_SUCCESS);
}

TEST_CASE("the child: imports a pool and a pointer", "[.child]") {
    const Gpu gpu;
    const int file = std::stoi(environment("FILE_NUMBER"));
    CUmemoryPool pool = nullptr;
    CUmemPoolPtrExportData data;
    CUdeviceptr start = 0;
    unsigned char byte = 0;
    unhex(environment("POINTER"), &data);
    REQUIRE(cuMemPoolImportFromShareableHandle(&pool, as_pointer(file), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) ==
            CUDA_SUCCESS);
    REQUIRE(cuMemPoolImportPointer(&start, pool, &data) == CUDA_SUCCESS);
    CHECK(gpu.taken() == 0);
    REQUIRE(cuMemcpyDtoH_v2(&byte, start, 1) == CUDA_SUCCESS);
    CHECK(byte == 0x42);
    CHECK(cuMemAllocFromPoolAsync(&start, kMiB, pool, nullptr) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemFreeAsync(start, nullptr) == CUDA_SUCCESS);
    CHECK(cuMemPoolDestroy(pool) == CUDA_SUCCESS);
}

TEST_CASE("memory of an exported pool is the same memory in both processes") {
    const Gpu gpu;
    const CUmemPoolProps properties = pool_on(CU_MEM_LOCATION_TYPE_DEVICE, 0, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    CUmemoryPool pool = nullptr;
    CUmemPoolPtrExportData data;
    CUdeviceptr start = 0;
    int file = -1;
    REQUIRE(cuMemPoolCreate(&pool, &properties) == CUDA_SUCCESS);
    REQUIRE(cuMemAllocFromPoolAsync(&start, 3 * kMiB, pool, nullptr) == CUDA_SUCCESS);
    REQUIRE(cuMemAllocFromPoolAsync(&start, 3 * kMiB, pool, nullptr) == CUDA_SUCCESS);
    REQUIRE(cuMemsetD8_v2(start, 0x42, 3 * kMiB) == CUDA_SUCCESS);
    REQUIRE(cuMemPoolExportToShareableHandle(&file, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) == CUDA_SUCCESS);
    REQUIRE(cuMemPoolExportPointer(&data, start) == CUDA_SUCCESS);
    CHECK(run_case("the child: imports a pool and a pointer",
                   {"FILE_NUMBER=" + std::to_string(inheritable(file)), "POINTER=" + hex(&data, sizeof data)}) == 0);
}

// The rest.

TEST_CASE("the child: an allocation takes the card's time", "[.child]") {
    const Gpu gpu;
    CUdeviceptr block = 0;
    const auto before = std::chrono::steady_clock::now();
    REQUIRE(cuMemAlloc_v2(&block, 2 * kMiB) == CUDA_SUCCESS);
    CHECK(std::chrono::steady_clock::now() - before >= std::chrono::microseconds(29));
}

TEST_CASE("with the card's latency calls take the card's time") {
    CHECK(run_case("the child: an allocation takes the card's time", {"CURB_SIM_LATENCY=h100"}) == 0);
}

TEST_CASE("the books in the process and NVML's agree") {
    const Gpu gpu;
    CUdeviceptr block = 0;
    REQUIRE(cuMemAlloc_v2(&block, 4 * kMiB) == CUDA_SUCCESS);
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
    CHECK(cuLaunchKernel(as(CUfunction{}), 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr) ==
          CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE("handles of a destroyed context are refused") {
    const Gpu gpu;
    CUcontext made = nullptr;
    CUarray array = nullptr;
    CUstream stream = nullptr;
    CUevent event = nullptr;
    CUmodule module = nullptr;
    const CUDA_ARRAY_DESCRIPTOR descriptor{64, 64, CU_AD_FORMAT_FLOAT, 1};
    REQUIRE(cuCtxCreate_v2(&made, 0, 0) == CUDA_SUCCESS);
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

TEST_CASE("an image says what the module takes, by itself or in the comments of another text") {
    const char *image =
        GENERATE("curb-sim-module code=4MiB global=64MiB once=138MiB\nkernel small\nkernel frame local=8192\n",
                 "// PTX\n\n// curb-sim-module code=4MiB global=64MiB once=138MiB\n// kernel small\n// kernel frame "
                 "local=8192\n.x");
    const Gpu gpu;
    CUfunction function = nullptr;
    {
        const Module module(image);
        CHECK(gpu.taken() == (64 + 138) * kMiB);
        CHECK(cuModuleGetFunction(&function, module, "other") == CUDA_ERROR_NOT_FOUND);
        function = module.function("frame");
        CHECK(gpu.taken() == (64 + 138 + 4) * kMiB);
        const Module again(image);
        CHECK(gpu.taken() == (64 + 138 + 4 + 64) * kMiB);
    }
    CHECK(gpu.taken() == 138 * kMiB);
    CHECK(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, nullptr, nullptr, nullptr) == CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE("the child: a module takes its code when it is loaded", "[.child]") {
    const Gpu gpu;
    const Module module("curb-sim-module code=22MiB\nkernel small\n");
    CHECK(gpu.taken() == 22 * kMiB);
}

TEST_CASE("with eager loading a module takes its code when it is loaded") {
    CHECK(run_case("the child: a module takes its code when it is loaded", {"CUDA_MODULE_LOADING=EAGER"}) == 0);
}

TEST_CASE("code for which there is no room fails the launch, not what comes before") {
    const Gpu gpu;
    const Module module("curb-sim-module code=64MiB\nkernel small\n");
    CUfunction function = nullptr;
    CUfunctionLoadingState state{};
    {
        const Filled filled;
        function = module.function("small");
        CHECK(cuFuncLoad(function) == CUDA_SUCCESS);
        REQUIRE(cuFuncIsLoaded(&state, function) == CUDA_SUCCESS);
        CHECK(state == CU_FUNCTION_LOADING_STATE_UNLOADED);
        CHECK(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, nullptr, nullptr, nullptr) == CUDA_ERROR_OUT_OF_MEMORY);
    }
    CHECK(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, nullptr, nullptr, nullptr) == CUDA_SUCCESS);
    CHECK(gpu.taken() == 64 * kMiB);
}

TEST_CASE("a kernel in a graph takes what it needs when the graph is launched") {
    const bool captured = GENERATE(true, false);
    const Gpu gpu;
    const Stream stream;
    const Module module("curb-sim-module\nkernel frame local=8192\n");
    const CUfunction function = module.function("frame");
    CUgraph graph = nullptr;
    CUgraphExec exec = nullptr;
    if (captured) {
        REQUIRE(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
        REQUIRE(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, nullptr, nullptr) == CUDA_SUCCESS);
        REQUIRE(cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);
    } else {
        CUgraph child = nullptr;
        CUgraphNode node = nullptr;
        CUDA_KERNEL_NODE_PARAMS params{};
        params.func = function;
        REQUIRE(cuGraphCreate(&child, 0) == CUDA_SUCCESS);
        REQUIRE(cuGraphAddKernelNode_v2(&node, child, nullptr, 0, &params) == CUDA_SUCCESS);
        REQUIRE(cuGraphCreate(&graph, 0) == CUDA_SUCCESS);
        REQUIRE(cuGraphAddChildGraphNode(&node, graph, nullptr, 0, child) == CUDA_SUCCESS);
        REQUIRE(cuGraphDestroy(child) == CUDA_SUCCESS);
    }
    REQUIRE(cuGraphInstantiate_v2(&exec, graph, nullptr, nullptr, 0) == CUDA_SUCCESS);
    CHECK(gpu.taken() == 0);
    REQUIRE(cuGraphLaunch(exec, stream) == CUDA_SUCCESS);
    CHECK(gpu.taken() == 1848 * kMiB);
    cuGraphExecDestroy(exec);
    cuGraphDestroy(graph);
}

TEST_CASE("memory mapped into a sparse array stays until the array goes, its handle released or not") {
    const Gpu gpu;
    const CUDA_ARRAY3D_DESCRIPTOR descriptor{4096, 4096, 0, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_SPARSE};
    const CUmemAllocationProp properties = on_device(0);
    CUmemGenericAllocationHandle handle = 0;
    CUarrayMapInfo info{};
    REQUIRE(cuArray3DCreate_v2(&info.resource.array, &descriptor) == CUDA_SUCCESS);
    REQUIRE(cuMemCreate(&handle, 2 * kMiB, &properties, 0) == CUDA_SUCCESS);
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

TEST_CASE("a graphics library's memory is reached at an address, charged to nobody, and freed by cuMemFree") {
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
    unsigned char byte = 0;
    REQUIRE(cuExternalMemoryGetMappedBuffer(&start, memory, &buffer) == CUDA_SUCCESS);
    REQUIRE(cuDestroyExternalMemory(memory) == CUDA_SUCCESS);
    REQUIRE(cuMemcpyDtoH_v2(&byte, start, 1) == CUDA_SUCCESS);
    CHECK(byte == 0x42);
    CHECK(gpu.taken() == 0);
    REQUIRE(cuMemFree_v2(start) == CUDA_SUCCESS);
    CHECK(cuMemFree_v2(start) == CUDA_ERROR_INVALID_VALUE);
}

// Which devices there are, and of which driver.

namespace {

unsigned char last_byte_of_uuid(CUdevice device) {
    CUuuid uuid{};
    REQUIRE(cuDeviceGetUuid_v2(&uuid, device) == CUDA_SUCCESS);
    return static_cast<unsigned char>(uuid.bytes[15]);
}

}  // namespace

TEST_CASE("the child: sees the GPUs that SEES names", "[.child]") {
    const std::string expected = environment("SEES");
    if (expected.empty()) {
        CHECK(cuInit(0) == CUDA_ERROR_NO_DEVICE);
        return;
    }
    const Gpu gpu;
    int count = 0;
    REQUIRE(cuDeviceGetCount(&count) == CUDA_SUCCESS);
    std::string seen;
    for (int device = 0; device < count; ++device) seen += static_cast<char>('0' + last_byte_of_uuid(device));
    CHECK(seen == expected);
    // NVML counts all of them, and finds what is held under its own number.
    unsigned gpus = 0, processes = 8;
    nvmlDevice_t first = nullptr;
    nvmlProcessInfo_t process[8];
    REQUIRE(nvmlInit_v2() == NVML_SUCCESS);
    REQUIRE(nvmlDeviceGetCount_v2(&gpus) == NVML_SUCCESS);
    CHECK(gpus == 4);
    REQUIRE(nvmlDeviceGetHandleByIndex_v2(last_byte_of_uuid(0), &first) == NVML_SUCCESS);
    REQUIRE(nvmlDeviceGetComputeRunningProcesses_v3(first, &processes, process) == NVML_SUCCESS);
    REQUIRE(processes == 1);
    CHECK(process[0].usedGpuMemory == curb_sim_held(0));
}

TEST_CASE("CUDA_VISIBLE_DEVICES chooses and orders the GPUs, up to the first entry that names none") {
    struct List {
        const char *value, *sees;
    };
    const std::string uuid = "GPU-c07b513d-0000-4000-8000-00000000000";
    const auto list = GENERATE(List{"2", "2"}, List{"3,0", "30"}, List{"1,9,0", "1"}, List{"0,-1,1", "0"}, List{"", ""},
                               List{"7", ""}, List{"none", ""}, List{"1,1", "1"}, List{"UUID2", "2"},
                               List{"UUID3,UUID1,0", "310"}, List{"GPU-c0", ""});
    std::string value = list.value;
    for (size_t at = 0; (at = value.find("UUID")) != std::string::npos;) value.replace(at, 4, uuid);
    CAPTURE(value);
    CHECK(run_case("the child: sees the GPUs that SEES names",
                   {"CURB_SIM_GPUS=4", "CUDA_VISIBLE_DEVICES=" + value, std::string("SEES=") + list.sees}) == 0);
}

TEST_CASE("the child: is on an instance of a GPU", "[.child]") {
    const Gpu gpu;
    CUuuid own{}, parent{};
    REQUIRE(cuDeviceGetUuid_v2(&own, 0) == CUDA_SUCCESS);
    REQUIRE(cuDeviceGetUuid(&parent, 0) == CUDA_SUCCESS);
    CHECK(std::memcmp(&own, &parent, sizeof own) != 0);
    const auto text = [](const char *kind, const CUuuid &uuid) {
        std::string digits = hex(uuid.bytes, sizeof uuid.bytes);
        for (const size_t at : {8u, 13u, 18u, 23u}) digits.insert(at, "-");
        return kind + digits;
    };
    REQUIRE(nvmlInit_v2() == NVML_SUCCESS);
    nvmlDevice_t instance = nullptr, whole = nullptr;
    CHECK(nvmlDeviceGetHandleByUUID(text("GPU-", own).c_str(), &instance) == NVML_ERROR_NOT_FOUND);
    REQUIRE(nvmlDeviceGetHandleByUUID(text("MIG-", own).c_str(), &instance) == NVML_SUCCESS);
    REQUIRE(nvmlDeviceGetHandleByUUID(text("GPU-", parent).c_str(), &whole) == NVML_SUCCESS);
    nvmlProcessInfo_t process[8];
    unsigned count = 8;
    REQUIRE(nvmlDeviceGetComputeRunningProcesses_v3(instance, &count, process) == NVML_SUCCESS);
    REQUIRE(count == 1);
    CHECK(process[0].usedGpuMemory == curb_sim_held(0));
    count = 8;
    REQUIRE(nvmlDeviceGetComputeRunningProcesses_v3(whole, &count, process) == NVML_SUCCESS);
    REQUIRE(count == 1);
    CHECK(process[0].usedGpuMemory == NVML_VALUE_NOT_AVAILABLE);
    nvmlMemory_t memory{};
    CHECK(nvmlDeviceGetMemoryInfo(instance, &memory) == NVML_SUCCESS);
    char told[96];
    REQUIRE(nvmlDeviceGetUUID(instance, told, sizeof told) == NVML_SUCCESS);
    CHECK(told == text("MIG-", own));
}

TEST_CASE("in MIG mode CUDA is on an instance, which NVML finds by a UUID of its own") {
    CHECK(run_case("the child: is on an instance of a GPU", {"CURB_SIM_MIG=1"}) == 0);
    CHECK(run_case("the child: is on an instance of a GPU",
                   {"CURB_SIM_MIG=1", "CUDA_VISIBLE_DEVICES=MIG-317b513d-0000-4000-8000-000000000000"}) == 0);
}

TEST_CASE("the child: comes back to a full device", "[.child]") {
    const Gpu gpu;
    CUdeviceptr block = 0;
    CUprocessState now{};
    CUcheckpointLockArgs lock{};
    const int self = ::getpid();
    REQUIRE(cuMemAlloc_v2(&block, kGiB) == CUDA_SUCCESS);
    const bool right =
        cuCheckpointProcessLock(self, &lock) == CUDA_SUCCESS &&
        cuCheckpointProcessCheckpoint(self, nullptr) == CUDA_SUCCESS && curb_sim_held(0) == 4 * kMiB &&
        run_case("the child: fills the device and lets go") == 0 &&  // it also asks for us to be moved back
        cuCheckpointProcessGetState(self, &now) == CUDA_SUCCESS && now == CU_PROCESS_STATE_FAILED &&
        cuCheckpointProcessUnlock(self, nullptr) == CUDA_ERROR_ILLEGAL_STATE &&
        cuCheckpointProcessRestore(self, nullptr) == CUDA_ERROR_ILLEGAL_STATE;
    ::_exit(right ? 0 : 1);  // every other call waits for ever now, those of the end of the case too
}

TEST_CASE("the child: fills the device and lets go", "[.child]") {
    const Gpu gpu;
    Filled all;
    all.leave(512 * kMiB);
    CHECK(cuCheckpointProcessRestore(::getppid(), nullptr) == CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_CASE("a process that comes back to too little room is lost") {
    const State state;
    CHECK(run_case("the child: comes back to a full device", {state.variable()}) == 0);
}

TEST_CASE("older drivers lack what came later, and say what they are") {
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

TEST_CASE("a module holds 2 MiB while it is loaded, a library once it is used in a context") {
    const Gpu gpu;
    const char image[] = "image";
    CUmodule module = nullptr;
    CUlibrary library = nullptr;
    CUkernel kernel = nullptr;
    CUfunction function = nullptr;
    REQUIRE(cuModuleLoadData(&module, image) == CUDA_SUCCESS);
    CHECK(gpu.taken() == 2 * kMiB);
    REQUIRE(cuModuleUnload(module) == CUDA_SUCCESS);
    CHECK(gpu.taken() == 0);
    REQUIRE(cuLibraryLoadData(&library, image, nullptr, nullptr, 0, nullptr, nullptr, 0) == CUDA_SUCCESS);
    REQUIRE(cuLibraryGetKernel(&kernel, library, "kernel") == CUDA_SUCCESS);
    CHECK(gpu.taken() == 0);
    REQUIRE(cuKernelGetFunction(&function, kernel) == CUDA_SUCCESS);
    CHECK(gpu.taken() == 2 * kMiB);
    CHECK(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, nullptr, nullptr, nullptr) == CUDA_SUCCESS);
    REQUIRE(cuLibraryUnload(library) == CUDA_SUCCESS);
    CHECK(gpu.taken() == 0);
    CHECK(cuModuleLoad(&module, "/no/such/file") == CUDA_ERROR_FILE_NOT_FOUND);
}

TEST_CASE("many threads at once leave the books empty") {
    const Gpu gpu;
    std::vector<std::thread> threads;
    threads.reserve(4);
    for (int i = 0; i < 4; ++i)
        threads.emplace_back([&] {
            cuCtxSetCurrent(gpu.context);
            for (uint64_t round = 1; round <= 200; ++round) {
                CUdeviceptr plain = 0, ordered = 0;
                cuMemAlloc_v2(&plain, round * 10000);
                cuMemAllocAsync_ptsz(&ordered, round * 10000, nullptr);
                cuMemsetD8Async_ptsz(ordered, 1, round, nullptr);
                cuMemFreeAsync_ptsz(ordered, nullptr);
                cuMemFree_v2(plain);
            }
            cuStreamSynchronize_ptsz(nullptr);
        });
    for (std::thread &thread : threads) thread.join();
    REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
    CHECK(gpu.taken() == 0);
}
