// The contract suite checks that a driver, simulated or real, behaves as docs/results/driver.md says, by the public
// interface alone. Against a real one: LD_LIBRARY_PATH=<its folder> build/tests/driver_contract, on a GPU that no other
// process uses. Cases tagged [h100] state figures of that card, those tagged [fills] fill the device, those tagged
// [checkpoint] move a process out of it. CONTRACT_KEEPS in the environment keeps the first context for the whole
// process.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "../families/properties.hpp"
#include "abi/cuda_abi.h"
#include "abi/nvml_abi.h"
#include "catch.hpp"
#include "temp_dir.hpp"

namespace contract {

inline constexpr int64_t kKiB = 1024;
inline constexpr int64_t kMiB = 1024 * kKiB;
inline constexpr int64_t kGiB = 1024 * kMiB;
inline constexpr int64_t kContext = 518 * kMiB;  // of an H100

// Returns the bytes of device 0 that this process holds: NVML's figure. If CONTRACT_BOOKS names the log of a curb whose
// policy says `"release": {"steps": []}` and `"log": {"level": "info"}`, it also compares curb's books, and prints each
// case's largest difference on stderr.
int64_t held();
// Returns NVML's figure for a process on device 0; 0 if it is not listed.
int64_t held_by(pid_t pid);
// Returns `total - free` of device 0.
int64_t device_used();

// NVML, for as long as this lives.
class Nvml {
  public:
    Nvml() { REQUIRE(nvmlInit_v2() == NVML_SUCCESS); }
    ~Nvml() { nvmlShutdown(); }
    Nvml(const Nvml &) = delete;
    Nvml &operator=(const Nvml &) = delete;

    nvmlDevice_t device(unsigned index = 0) const {
        nvmlDevice_t device = nullptr;
        REQUIRE(nvmlDeviceGetHandleByIndex_v2(index, &device) == NVML_SUCCESS);
        return device;
    }
    std::vector<nvmlProcessInfo_t> processes(nvmlDevice_t device) const;
};
// Returns a UUID as NVML writes it, behind `kind`: "GPU-" or "MIG-".
std::string text_of(const char *kind, const CUuuid &uuid);

// Device 0 with its primary context current, released at the end of the case.
class Gpu {
  public:
    Gpu();
    ~Gpu();
    Gpu(const Gpu &) = delete;
    Gpu &operator=(const Gpu &) = delete;

    // Returns the bytes that the process holds beyond those right after the context was made.
    int64_t taken() const { return held() - at_start_; }
    // Returns whether that is `bytes`, or up to a granule more that the driver takes for itself (a capture, a first
    // fill).
    bool took(int64_t bytes) const { return taken() >= bytes && taken() <= bytes + 2 * kMiB; }

    CUdevice device = 0;
    CUcontext context = nullptr;

  private:
    int64_t at_start_ = 0;
};

// A handle and the call that ends it.
template <class Handle, CUresult (*kEnd)(Handle)>
class Owned {
  public:
    Owned() = default;
    ~Owned() {
        if (handle_) kEnd(handle_);
    }
    Owned(const Owned &) = delete;
    Owned &operator=(const Owned &) = delete;
    operator Handle() const { return handle_; }

  protected:
    Handle handle_ = nullptr;
};

struct Stream : Owned<CUstream, cuStreamDestroy_v2> {
    explicit Stream(unsigned flags = CU_STREAM_NON_BLOCKING) {
        REQUIRE(cuStreamCreate(&handle_, flags) == CUDA_SUCCESS);
    }
};

struct Event : Owned<CUevent, cuEventDestroy_v2> {
    Event() { REQUIRE(cuEventCreate(&handle_, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS); }
};

// A module in the current context.
struct Module : Owned<CUmodule, cuModuleUnload> {
    explicit Module(const char *image) { REQUIRE(cuModuleLoadData(&handle_, image) == CUDA_SUCCESS); }
    CUfunction function(const char *name) const {
        CUfunction function = nullptr;
        REQUIRE(cuModuleGetFunction(&function, handle_, name) == CUDA_SUCCESS);
        return function;
    }
};

// A graph of the calls that `work` makes in a captured stream.
struct Captured : Owned<CUgraph, cuGraphDestroy> {
    Captured(CUstream stream, const std::function<void()> &work);
};

struct Executable : Owned<CUgraphExec, cuGraphExecDestroy> {
    explicit Executable(CUgraph graph) { REQUIRE(cuGraphInstantiateWithFlags(&handle_, graph, 0) == CUDA_SUCCESS); }
};

// Launches a graph and waits for it.
void run_graph(CUgraphExec exec, CUstream stream);

// Plain memory in the current context.
CUdeviceptr allocate(uint64_t bytes);
// Physical memory of device 0, addresses, and the one at the other, readable and writable.
CUmemGenericAllocationHandle create(uint64_t size, CUmemAllocationHandleType type = CU_MEM_HANDLE_TYPE_NONE);
CUdeviceptr reserve(uint64_t size);
void map(CUdeviceptr at, CUmemGenericAllocationHandle handle, uint64_t size);
CUlibrary load_library(const char *image);
// The byte at an address of the device.
unsigned char byte_at(CUdeviceptr address);
// A context on device 0 beside the primary one, which is current now.
CUcontext create_context();
CUmemoryPool default_pool();

// Launches one thread of a kernel; `arguments` as for cuLaunchKernel.
inline CUresult run_kernel(CUfunction kernel, CUstream stream = nullptr, void **arguments = nullptr) {
    return cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, arguments, nullptr);
}
// Launches the kernel of kBusyImage (images.hpp), with `block` to itself.
inline void run_busy(CUfunction busy, CUstream stream, CUdeviceptr block) {
    void *arguments[] = {&block};
    REQUIRE(run_kernel(busy, stream, arguments) == CUDA_SUCCESS);
}

// True if `begin_and_look`, which begins some work, sees it in progress. On a busy machine this thread may be suspended
// until the work has ended, so it tries again. If a call waits for the work, every try sees it ended.
template <class BeginAndLook>
bool is_seen_in_progress(BeginAndLook begin_and_look) {
    for (int i = 0; i < 20; ++i)
        if (begin_and_look()) return true;
    return false;
}

// Takes all the memory that device 0 has left, down to the last granule.
class Filled {
  public:
    Filled();
    ~Filled();
    Filled(const Filled &) = delete;
    Filled &operator=(const Filled &) = delete;
    // Frees at least `bytes`.
    void leave(int64_t bytes);

  private:
    std::vector<std::pair<CUdeviceptr, int64_t>> blocks_;  // the smallest last
};

// Runs another case of this program, one tagged [.child] (the leading dot keeps it out of a plain run), in a process of
// its own with more environment. Returns its exit status: 0 if the case passed, not 0 if there is none of that name.
int run_case(const std::string &name, const std::vector<std::string> &environment = {});
// A case in a process of its own, with this environment.
#define IN_A_PROCESS(name, tags, ...)                                                  \
    TEST_CASE(name, tags) { CHECK(run_case("the child: " name, {__VA_ARGS__}) == 0); } \
    TEST_CASE("the child: " name, "[.child]")
// Waits for a child. Returns its exit status, or 128 + the signal that ended it.
int exit_status_of(pid_t child);
// Returns a variable that must be set.
std::string environment(const char *name);

// The state file of a simulated machine that processes share. The first of them creates it. A real driver ignores it.
class State {
  public:
    std::string path() const { return folder_ / "state"; }
    std::string variable() const { return "CURB_SIM_STATE=" + path(); }
    void make_empty() const { folder_.write("state", ""); }

  private:
    TempDir folder_;
};

// Returns an address, or a descriptor, in the type that some calls take.
inline void *as_pointer(uint64_t number) {
    return reinterpret_cast<void *>(number);  // NOLINT(performance-no-int-to-ptr)
}

using families::memory_node;
using families::on_device;
using families::pool_on;
CUmemAccessDesc read_write(int device);
uint64_t attribute(CUmemoryPool pool, CUmemPool_attribute attribute);

}  // namespace contract
