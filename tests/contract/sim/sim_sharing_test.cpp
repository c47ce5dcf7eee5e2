// Processes that share a simulated machine: how they see each other, share memory, and end.
#include "sim.h"

#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "contract.hpp"
#include "images.hpp"

using namespace contract;

namespace {

constexpr int64_t kReserved = 615 * kMiB;  // of the device, by NVML alone

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

// Returns the output of curb-sim-books for a machine.
std::string books_of(const std::string &state) {
    std::string text;
    FILE *pipe = ::popen((environment("BOOKS") + " " + state).c_str(), "r");
    REQUIRE(pipe);
    char part[4096];
    while (std::fgets(part, sizeof part, pipe)) text += part;
    CHECK(::pclose(pipe) == 0);
    return text;
}

}  // namespace

TEST_CASE("the child: sees the other's GiB through CUDA and NVML", "[.child]") {
    const Gpu gpu;
    CHECK(device_used() == kGiB + 2 * kContext);
    CHECK(held() == kContext);
    CHECK(held_by(std::stoi(environment("OTHER"))) == kGiB + kContext);
    const Nvml nvml;
    CHECK(nvml.processes(nvml.device()).size() == 2);
    CUdeviceptr block = 0;
    CHECK(cuMemAlloc_v2(&block, 79 * kGiB) == CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_CASE("the child: NVML alone sees the other's GiB", "[.child]") {
    const Nvml nvml;
    nvmlMemory_t memory{};
    REQUIRE(nvmlDeviceGetMemoryInfo(nvml.device(), &memory) == NVML_SUCCESS);
    CHECK(memory.used == kGiB + kContext + kReserved);
    CHECK(memory.free == memory.total - memory.used);
}

TEST_CASE("the child: NVML lists no process", "[.child]") {
    const Nvml nvml;
    CHECK(nvml.processes(nvml.device()).empty());
}

TEST_CASE("the child: takes 2 GiB and is killed", "[.child]") {
    const Gpu gpu;
    allocate(2 * kGiB);
    CHECK(device_used() == 3 * kGiB + 2 * kContext);
    std::raise(SIGKILL);
}

TEST_CASE("the child: holds a GiB on a shared machine", "[.child]") {
    const Gpu gpu;
    allocate(kGiB);
    const std::string me = "OTHER=" + std::to_string(::getpid());
    CHECK(run_case("the child: sees the other's GiB through CUDA and NVML", {me}) == 0);
    CHECK(run_case("the child: NVML alone sees the other's GiB") == 0);
    CHECK(run_case("the child: NVML lists no process", {"CURB_SIM_NVML=nopids"}) == 0);
    CHECK(run_case("the child: takes 2 GiB and is killed") == 128 + SIGKILL);
    CHECK(device_used() == kGiB + kContext);

    const std::string books = books_of(environment("CURB_SIM_STATE"));
    CHECK_THAT(books, contains("{\"devices\":[{\"total\":85899345920,\"used\":" + std::to_string(kGiB + kContext)));
    CHECK_THAT(books, contains("\"pid\":" + std::to_string(::getpid())));
    CHECK_THAT(books, contains("\"context\":" + std::to_string(kContext) + ",\"plain\":" + std::to_string(kGiB)));
}

TEST_CASE("processes that name one state file share the machine") {
    const State state;
    if (GENERATE(false, true)) state.make_empty();  // which is as good as none
    CHECK(run_case("the child: holds a GiB on a shared machine", {state.variable()}) == 0);
    const std::string books = books_of(state.path());
    CHECK(books == "{\"devices\":[{\"total\":85899345920,\"used\":0,\"high\":0,\"overlaps\":0,\"processes\":[]}]}\n");
}

TEST_CASE("the child: uses a block twice at once", "[.child]") {
    const Gpu gpu;
    const Module module(kBusyImage);
    const Stream one, other;
    const CUdeviceptr block = allocate(2 * kMiB);
    const CUfunction busy = module.function("busy");
    CHECK(is_seen_in_progress([&] {
        REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
        run_busy(busy, one, block);
        run_busy(busy, other, block);
        return curb_sim_overlaps(0) == 1;
    }));
}

TEST_CASE("curb-sim-books reports overlaps of processes that have ended") {
    const State state;
    CHECK(run_case("the child: uses a block twice at once", {state.variable()}) == 0);
    CHECK_THAT(books_of(state.path()), contains("\"overlaps\":1,\"processes\":[]"));
}

TEST_CASE("curb-sim-books refuses a file that is not a state file") {
    const State state;
    state.make_empty();
    CHECK(std::system((environment("BOOKS") + " " + state.path() + " 2>/dev/null").c_str()) != 0);
    CHECK(std::system((environment("BOOKS") + " /no/such/file 2>/dev/null").c_str()) != 0);
}

TEST_CASE("the child: imports a handle", "[.child]") {
    const Gpu gpu;
    const int file = std::stoi(environment("FILE_NUMBER"));
    CUmemGenericAllocationHandle handle = 0;
    REQUIRE(cuMemImportFromShareableHandle(&handle, as_pointer(file), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) ==
            CUDA_SUCCESS);
    CHECK(gpu.taken() == 0);
    const CUdeviceptr start = reserve(4 * kMiB);
    map(start, handle, 4 * kMiB);
    CHECK(byte_at(start) == 0x42);
    CHECK(cuMemsetD8_v2(start, 0x43, 1) == CUDA_SUCCESS);
}

TEST_CASE("VMM memory exported to another process shows it the same bytes and is not charged there") {
    const Gpu gpu;
    const CUmemAccessDesc access = read_write(0);
    const auto handle = create(4 * kMiB, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    const CUdeviceptr start = reserve(4 * kMiB);
    int file = -1;
    REQUIRE(cuMemMap(start, 4 * kMiB, 0, handle, 0) == CUDA_SUCCESS);
    CHECK(cuMemsetD8_v2(start, 0x42, kMiB) == CUDA_ERROR_INVALID_VALUE);  // no access yet
    REQUIRE(cuMemSetAccess(start, 4 * kMiB, &access, 1) == CUDA_SUCCESS);
    REQUIRE(cuMemsetD8_v2(start, 0x42, kMiB) == CUDA_SUCCESS);
    REQUIRE(cuMemExportToShareableHandle(&file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) == CUDA_SUCCESS);
    CHECK(run_case("the child: imports a handle", {"FILE_NUMBER=" + std::to_string(inheritable(file))}) == 0);
    CHECK(byte_at(start) == 0x43);
}

TEST_CASE("the child: opens an IPC handle", "[.child]") {
    const Gpu gpu;
    CUipcMemHandle handle;
    CUdeviceptr start = 0;
    unsigned char byte = 0;
    unhex(environment("HANDLE"), &handle);
    REQUIRE(cuIpcOpenMemHandle_v2(&start, handle, 1) == CUDA_SUCCESS);
    CHECK(gpu.taken() == 0);
    CHECK(byte_at(start) == 0x42);
    CHECK(cuMemsetD8_v2(start, 0x43, 1) == CUDA_SUCCESS);
    CHECK(cuMemFree_v2(start) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuIpcCloseMemHandle(start) == CUDA_SUCCESS);
    CHECK(cuMemcpyDtoH_v2(&byte, start, 1) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("plain memory shared over IPC is the same memory in both processes") {
    const uint64_t size = GENERATE(4 * kKiB, 5 * kMiB);  // in a shared granule, in its own
    const Gpu gpu;
    CUdeviceptr opened = 0;
    CUipcMemHandle handle;
    const CUdeviceptr start = allocate(size);
    REQUIRE(cuMemsetD8_v2(start, 0x42, size) == CUDA_SUCCESS);
    REQUIRE(cuIpcGetMemHandle(&handle, start) == CUDA_SUCCESS);
    CHECK(cuIpcOpenMemHandle_v2(&opened, handle, 1) == CUDA_ERROR_INVALID_CONTEXT);  // its own
    CHECK(run_case("the child: opens an IPC handle", {"HANDLE=" + hex(&handle, sizeof handle)}) == 0);
    CHECK(byte_at(start) == 0x43);
    CHECK(byte_at(start + size - 1) == 0x42);
    CHECK(cuMemFree_v2(start) == CUDA_SUCCESS);
}

TEST_CASE("the child: imports a pool and a pointer", "[.child]") {
    const Gpu gpu;
    const int file = std::stoi(environment("FILE_NUMBER"));
    CUmemoryPool pool = nullptr;
    CUmemPoolPtrExportData data;
    CUdeviceptr start = 0;
    unhex(environment("POINTER"), &data);
    REQUIRE(cuMemPoolImportFromShareableHandle(&pool, as_pointer(file), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) ==
            CUDA_SUCCESS);
    REQUIRE(cuMemPoolImportPointer(&start, pool, &data) == CUDA_SUCCESS);
    CHECK(gpu.taken() == 0);
    CHECK(byte_at(start) == 0x42);
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

TEST_CASE("the child: comes back to a full device", "[.child]") {
    const Gpu gpu;
    CUprocessState now{};
    CUcheckpointLockArgs lock{};
    const int self = ::getpid();
    allocate(kGiB);
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
