// The contract suite asks a driver, simulated or real, whether it behaves as docs/results/driver.md says, by the public
// interface alone. Against a real one: LD_LIBRARY_PATH=<its folder> build/tests/driver_contract, on a GPU that nobody
// else uses. Cases tagged [h100] state figures of that card, those tagged [fills] fill the device, those tagged
// [checkpoint] move a process out of it. CONTRACT_KEEPS in the environment keeps the first context for the whole
// process.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "cuda_abi.h"

namespace contract {

inline constexpr int64_t kKiB = 1024;
inline constexpr int64_t kMiB = 1024 * kKiB;
inline constexpr int64_t kGiB = 1024 * kMiB;

// Bytes of device 0 that this process holds: NVML's figure. With CONTRACT_BOOKS=FILE, the log of a curb in front whose
// policy says `"release": {"steps": []}` and "log": {"level": "info"}, curb's own account is asked for at the same
// time, and a line on stderr says for each case by how much the two differed at the most.
int64_t held();
// What `total - free` says of device 0.
int64_t device_used();

// Device 0 with its primary context current; all of it gone at the end of the case.
class Gpu {
  public:
    Gpu();
    ~Gpu();
    Gpu(const Gpu &) = delete;
    Gpu &operator=(const Gpu &) = delete;

    // How much more the process holds than right after the context was made.
    int64_t taken() const { return held() - at_start_; }
    // Whether that is `bytes`, give or take a granule that the driver takes for itself (a capture, a first fill).
    bool took(int64_t bytes) const { return taken() >= bytes && taken() <= bytes + 2 * kMiB; }

    CUdevice device = 0;
    CUcontext context = nullptr;

  private:
    int64_t at_start_ = 0;
};

class Stream {
  public:
    explicit Stream(unsigned flags = CU_STREAM_NON_BLOCKING) {
        REQUIRE(cuStreamCreate(&handle_, flags) == CUDA_SUCCESS);
    }
    ~Stream() { cuStreamDestroy_v2(handle_); }
    Stream(const Stream &) = delete;
    Stream &operator=(const Stream &) = delete;
    operator CUstream() const { return handle_; }

  private:
    CUstream handle_ = nullptr;
};

// A module in the current context.
class Module {
  public:
    explicit Module(const char *image) { REQUIRE(cuModuleLoadData(&handle_, image) == CUDA_SUCCESS); }
    ~Module() { cuModuleUnload(handle_); }
    Module(const Module &) = delete;
    Module &operator=(const Module &) = delete;
    operator CUmodule() const { return handle_; }
    CUfunction function(const char *name) const {
        CUfunction function = nullptr;
        REQUIRE(cuModuleGetFunction(&function, handle_, name) == CUDA_SUCCESS);
        return function;
    }

  private:
    CUmodule handle_ = nullptr;
};

// All the memory that device 0 has left, down to the last granule.
class Filled {
  public:
    Filled();
    ~Filled();
    Filled(const Filled &) = delete;
    Filled &operator=(const Filled &) = delete;
    // Gives so many bytes back, or a little more.
    void leave(int64_t bytes);

  private:
    std::vector<std::pair<CUdeviceptr, int64_t>> blocks_;  // the smallest last
};

// Runs another case of this program, one tagged [.child] (the leading dot keeps it out of a plain run), in a process of
// its own with more environment. Its exit status: 0 when the case passed.
int run_case(const std::string &name, const std::vector<std::string> &environment = {});

// An address, or a descriptor, in the type that some calls want.
inline void *as_pointer(uint64_t number) {
    return reinterpret_cast<void *>(number);  // NOLINT(performance-no-int-to-ptr)
}

CUmemAllocationProp on_device(int device, CUmemAllocationHandleType handle = CU_MEM_HANDLE_TYPE_NONE);
CUmemPoolProps pool_on(CUmemLocationType type, int id, CUmemAllocationHandleType handle = CU_MEM_HANDLE_TYPE_NONE);
CUmemAccessDesc read_write(int device);
uint64_t attribute(CUmemoryPool pool, CUmemPool_attribute attribute);
uint64_t graph_attribute(CUgraphMem_attribute attribute);

}  // namespace contract
