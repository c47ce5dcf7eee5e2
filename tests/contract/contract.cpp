#include "contract.hpp"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <thread>

namespace contract {

namespace {

// Returns the bytes of device 0 that this process holds by curb's log, without managed memory, which NVML counts for no
// process. The release signal makes curb log them.
int64_t curbs_account(const std::string &log) {
    std::ifstream lines(log, std::ios::ate);
    REQUIRE(::kill(::getpid(), SIGUSR1) == 0);
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    std::string line;
    while (std::chrono::steady_clock::now() < until) {
        std::string more;
        if (!std::getline(lines, more) || lines.eof()) {  // the end of the file, perhaps within a line
            line += more;
            lines.clear();
            std::this_thread::sleep_for(std::chrono::microseconds(200));
            continue;
        }
        line += more;
        long long held = 0, managed = 0;
        const char *books = std::strstr(line.c_str(), "books: cuda:0 holds ");
        const char *part = books ? std::strstr(books, "managed ") : nullptr;
        if (part && std::sscanf(books, "books: cuda:0 holds %lld", &held) == 1 &&
            std::sscanf(part, "managed %lld", &managed) == 1)
            return held - managed;
        line.clear();
    }
    FAIL("curb gave no account within 5 s in " << log);
    return 0;
}

// The largest difference between books and device in one case.
struct Agreement {
    std::string name;
    int64_t off = 0, device = 0;

    void say() const {
        if (!name.empty())
            std::fprintf(stderr, "books: %+.1f MiB of %.0f MiB: %s\n", static_cast<double>(off) / kMiB,
                         static_cast<double>(device) / kMiB, name.c_str());
    }
};

void compare_books(int64_t device) {
    static const char *log = std::getenv("CONTRACT_BOOKS");
    static Agreement worst;
    if (!log) return;
    static const int at_exit = std::atexit([] { worst.say(); });  // the last case
    REQUIRE(at_exit == 0);
    const std::string name = Catch::getResultCapture().getCurrentTestName();
    const int64_t off = curbs_account(log) - device;
    if (name != worst.name) {
        worst.say();
        worst = {name, off, device};
    } else if (std::abs(off) > std::abs(worst.off)) {
        worst.off = off;
        worst.device = device;
    }
    CHECK(std::abs(off) <= std::max<int64_t>(16 * kMiB, device / 100));
}

}  // namespace

int64_t held_by(pid_t pid) {
    const Nvml nvml;
    for (const nvmlProcessInfo_t &process : nvml.processes(nvml.device()))
        if (process.pid == static_cast<unsigned>(pid)) return static_cast<int64_t>(process.usedGpuMemory);
    return 0;
}

int64_t held() {
    const int64_t device = held_by(::getpid());
    // Without a context there is nothing to compare: curb logs no books of a device that is not in use.
    if (device != 0) compare_books(device);
    return device;
}

int64_t device_used() {
    size_t free = 0, total = 0;
    REQUIRE(cuMemGetInfo_v2(&free, &total) == CUDA_SUCCESS);
    return static_cast<int64_t>(total - free);
}

std::vector<nvmlProcessInfo_t> Nvml::processes(nvmlDevice_t device) const {
    std::vector<nvmlProcessInfo_t> processes(64);
    auto count = static_cast<unsigned>(processes.size());
    REQUIRE(nvmlDeviceGetComputeRunningProcesses_v3(device, &count, processes.data()) == NVML_SUCCESS);
    processes.resize(count);
    return processes;
}

std::string text_of(const char *kind, const CUuuid &uuid) {
    std::string text = kind;
    for (int i = 0; i < 16; ++i) {
        char byte[3];
        std::snprintf(byte, sizeof byte, "%02x", unsigned{static_cast<unsigned char>(uuid.bytes[i])});
        if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
        text += byte;
    }
    return text;
}

Gpu::Gpu() {
    REQUIRE(cuInit(0) == CUDA_SUCCESS);
    REQUIRE(cuDeviceGet(&device, 0) == CUDA_SUCCESS);
    // A context costs seconds under a memory checker. With CONTRACT_KEEPS the first one stays for the whole process,
    // and stdout is written line by line, between the lines of the checker.
    static const bool keeps = std::getenv("CONTRACT_KEEPS") && std::setvbuf(stdout, nullptr, _IOLBF, 0) == 0 &&
                              cuDevicePrimaryCtxRetain(&context, device) == CUDA_SUCCESS;
    static_cast<void>(keeps);
    REQUIRE(cuDevicePrimaryCtxRetain(&context, device) == CUDA_SUCCESS);
    REQUIRE(cuCtxSetCurrent(context) == CUDA_SUCCESS);
    at_start_ = held();
}

Gpu::~Gpu() {
    held();  // compares ledger and device after the case
    cuCtxSetCurrent(nullptr);
    cuDevicePrimaryCtxRelease_v2(device);
}

Filled::Filled() {
    for (const int64_t size : {4 * kGiB, 256 * kMiB, 32 * kMiB, 2 * kMiB})
        for (CUdeviceptr block = 0; cuMemAlloc_v2(&block, static_cast<size_t>(size)) == CUDA_SUCCESS;)
            blocks_.emplace_back(block, size);
}

Filled::~Filled() {
    for (const auto &[block, size] : blocks_) cuMemFree_v2(block);
}

void Filled::leave(int64_t bytes) {
    for (; bytes > 0 && !blocks_.empty(); blocks_.pop_back()) {
        cuMemFree_v2(blocks_.back().first);
        bytes -= blocks_.back().second;
    }
}

int run_case(const std::string &name, const std::vector<std::string> &environment) {
    std::vector<std::string> variables = environment;
    for (char **variable = environ; *variable; ++variable)
        variables.emplace_back(*variable);  // the first of a name wins
    std::vector<char *> env;
    env.reserve(variables.size() + 1);
    for (std::string &variable : variables) env.push_back(variable.data());
    env.push_back(nullptr);
    // An unknown name must fail: by default version 2 of Catch succeeds when it runs no case.
#if __has_include(<catch2/catch_test_macros.hpp>)
    std::string nothing_found = "UnmatchedTestSpec";
#else
    std::string nothing_found = "NoTests";
#endif
    std::string program = "/proc/self/exe", what, warn = "--warn";
    for (const char letter : name) {  // a comma ends a name, for Catch
        if (letter == ',') what += '\\';
        what += letter;
    }
    char *arguments[] = {program.data(), what.data(), warn.data(), nothing_found.data(), nullptr};
    pid_t pid = 0;
    REQUIRE(::posix_spawn(&pid, "/proc/self/exe", nullptr, nullptr, arguments, env.data()) == 0);
    return exit_status_of(pid);
}

int exit_status_of(pid_t child) {
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::string environment(const char *name) {
    const char *value = std::getenv(name);
    REQUIRE(value);
    return value;
}

Captured::Captured(CUstream stream, const std::function<void()> &work) {
    REQUIRE(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
    work();
    REQUIRE(cuStreamEndCapture(stream, &handle_) == CUDA_SUCCESS);
}

void run_graph(CUgraphExec exec, CUstream stream) {
    REQUIRE(cuGraphLaunch(exec, stream) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
}

CUmemGenericAllocationHandle create(uint64_t size, CUmemAllocationHandleType type) {
    const CUmemAllocationProp properties = on_device(0, type);
    CUmemGenericAllocationHandle handle = 0;
    REQUIRE(cuMemCreate(&handle, size, &properties, 0) == CUDA_SUCCESS);
    return handle;
}

CUdeviceptr reserve(uint64_t size) {
    CUdeviceptr start = 0;
    REQUIRE(cuMemAddressReserve(&start, size, 0, 0, 0) == CUDA_SUCCESS);
    return start;
}

void map(CUdeviceptr at, CUmemGenericAllocationHandle handle, uint64_t size) {
    const CUmemAccessDesc access = read_write(0);
    REQUIRE(cuMemMap(at, size, 0, handle, 0) == CUDA_SUCCESS);
    REQUIRE(cuMemSetAccess(at, size, &access, 1) == CUDA_SUCCESS);
}

CUlibrary load_library(const char *image) {
    CUlibrary library = nullptr;
    REQUIRE(cuLibraryLoadData(&library, image, nullptr, nullptr, 0, nullptr, nullptr, 0) == CUDA_SUCCESS);
    return library;
}

unsigned char byte_at(CUdeviceptr address) {
    unsigned char byte = 0;
    REQUIRE(cuMemcpyDtoH_v2(&byte, address, 1) == CUDA_SUCCESS);
    return byte;
}

CUdeviceptr allocate(uint64_t bytes) {
    CUdeviceptr block = 0;
    REQUIRE(cuMemAlloc_v2(&block, bytes) == CUDA_SUCCESS);
    return block;
}

CUcontext create_context() {
    CUcontext made = nullptr;
    REQUIRE(cuCtxCreate_v2(&made, 0, 0) == CUDA_SUCCESS);
    return made;
}

CUmemoryPool default_pool() {
    CUmemoryPool pool = nullptr;
    REQUIRE(cuDeviceGetDefaultMemPool(&pool, 0) == CUDA_SUCCESS);
    return pool;
}

CUmemAccessDesc read_write(int device) {
    return {{CU_MEM_LOCATION_TYPE_DEVICE, device}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
}

uint64_t attribute(CUmemoryPool pool, CUmemPool_attribute attribute) {
    uint64_t value = 0;
    REQUIRE(cuMemPoolGetAttribute(pool, attribute, &value) == CUDA_SUCCESS);
    return value;
}

}  // namespace contract
