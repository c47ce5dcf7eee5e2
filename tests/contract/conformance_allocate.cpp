// The calls of the child: every way to get 512 MiB of the device, through functions that were looked up in one way.
#include <cstring>
#include <vector>

#include "conformance_probe.hpp"
#include "conformance_rows.hpp"
#include "cuda_abi.h"
#include "nvml_abi.h"

namespace conformance {
namespace {

constexpr std::size_t kMiB = 1 << 20;
constexpr std::size_t kPiece = 512 * kMiB;

// The result of calling what the driver does not have; none of the driver's.
constexpr auto kAbsent = static_cast<CUresult>(777);

Find the_find = nullptr;

#define CALL(function, ...) call(reinterpret_cast<decltype(&::function)>(the_find(#function)), __VA_ARGS__)
// The legacy or the per-thread form, by the way's name.
#define CALL_FORM(function, ...) (per_thread_ ? CALL(function##_ptsz, __VA_ARGS__) : CALL(function, __VA_ARGS__))

template <class Function, class... Args>
CUresult call(Function *function, Args... args) {
    return function ? static_cast<CUresult>(function(args...)) : kAbsent;
}

CUmemLocation device_0() { return {CU_MEM_LOCATION_TYPE_DEVICE, 0}; }

// One way to take memory. `nth` is 0 for the first piece, 1 for the second while the first is held.
class Way {
  public:
    explicit Way(bool per_thread) : per_thread_(per_thread) {}
    virtual ~Way() = default;
    virtual CUresult take(int nth) = 0;
    virtual void give_back() = 0;

  protected:
    bool per_thread_;
};

class Plain : public Way {
  public:
    using Way::Way;
    CUresult take(int) override {
        CUdeviceptr block = 0;
        const CUresult result = allocate(&block);
        if (result == CUDA_SUCCESS) blocks_.push_back(block);
        return result;
    }
    void give_back() override {
        for (const CUdeviceptr block : blocks_) free(block);
        blocks_.clear();
    }

  protected:
    virtual CUresult allocate(CUdeviceptr *block) { return CALL(cuMemAlloc_v2, block, kPiece); }
    virtual void free(CUdeviceptr block) { CALL(cuMemFree_v2, block); }

  private:
    std::vector<CUdeviceptr> blocks_;
};

class Pitched : public Plain {
    using Plain::Plain;
    CUresult allocate(CUdeviceptr *block) override {
        std::size_t pitch = 0;
        return CALL(cuMemAllocPitch_v2, block, &pitch, kPiece / 1024, std::size_t{1024}, 4U);
    }
};

class Managed : public Plain {
    using Plain::Plain;
    CUresult allocate(CUdeviceptr *block) override {
        return CALL(cuMemAllocManaged, block, kPiece, unsigned{CU_MEM_ATTACH_GLOBAL});
    }
};

class StreamOrdered : public Plain {
  public:
    explicit StreamOrdered(bool per_thread) : Plain(per_thread) {
        CALL(cuStreamCreate, &stream_, unsigned{CU_STREAM_NON_BLOCKING});
    }
    ~StreamOrdered() override { CALL(cuStreamDestroy_v2, stream_); }

  protected:
    CUresult allocate(CUdeviceptr *block) override { return CALL_FORM(cuMemAllocAsync, block, kPiece, stream_); }
    void free(CUdeviceptr block) override {
        CALL_FORM(cuMemFreeAsync, block, stream_);
        CALL(cuStreamSynchronize, stream_);  // the pool gives back what is seen complete
    }
    CUstream stream_ = nullptr;
};

class FromPool : public StreamOrdered {
  public:
    explicit FromPool(bool per_thread) : StreamOrdered(per_thread) {
        CUmemPoolProps properties;
        std::memset(&properties, 0, sizeof properties);
        properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.location = device_0();
        CALL(cuMemPoolCreate, &pool_, &properties);
    }
    ~FromPool() override { CALL(cuMemPoolDestroy, pool_); }

  protected:
    CUresult allocate(CUdeviceptr *block) override {
        return CALL_FORM(cuMemAllocFromPoolAsync, block, kPiece, pool_, stream_);
    }
    CUmemoryPool pool_ = nullptr;
};

// A pool that keeps what is freed into it until it is trimmed.
class FromKeepingPool : public FromPool {
  public:
    explicit FromKeepingPool(bool per_thread) : FromPool(per_thread) {
        std::uint64_t threshold = ~std::uint64_t{0};
        CALL(cuMemPoolSetAttribute, pool_, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold);
    }

  private:
    void free(CUdeviceptr block) override {
        FromPool::free(block);
        CALL(cuMemPoolTrimTo, pool_, std::size_t{0});
    }
};

// The device's own pool, by the calls that came with CUDA 13.0.
template <bool is_default>
class FromGivenPool : public StreamOrdered {
    using StreamOrdered::StreamOrdered;
    CUresult allocate(CUdeviceptr *block) override {
        CUmemLocation where = device_0();
        CUmemoryPool pool = nullptr;
        const CUresult result = is_default ? CALL(cuMemGetDefaultMemPool, &pool, &where, CU_MEM_ALLOCATION_TYPE_PINNED)
                                           : CALL(cuMemGetMemPool, &pool, &where, CU_MEM_ALLOCATION_TYPE_PINNED);
        return result ? result : CALL(cuMemAllocFromPoolAsync, block, kPiece, pool, stream_);
    }
};

class Created : public Plain {
    using Plain::Plain;

  protected:
    CUresult allocate(CUdeviceptr *block) override {
        CUmemAllocationProp properties;
        std::memset(&properties, 0, sizeof properties);
        properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.location = device_0();
        CUmemGenericAllocationHandle handle = 0;
        const CUresult result = CALL(cuMemCreate, &handle, kPiece, &properties, 0ULL);
        *block = handle;
        return result;
    }
    void free(CUdeviceptr block) override { CALL(cuMemRelease, block); }
};

// Released right after mapping: the mapping alone keeps the memory.
class Mapped : public Created {
    using Created::Created;
    CUresult allocate(CUdeviceptr *block) override {
        CUdeviceptr handle = 0;
        CUresult result = Created::allocate(&handle);
        if (result != CUDA_SUCCESS) return result;
        result = CALL(cuMemAddressReserve, block, kPiece, std::size_t{0}, CUdeviceptr{0}, 0ULL);
        if (result == CUDA_SUCCESS) result = CALL(cuMemMap, *block, kPiece, std::size_t{0}, handle, 0ULL);
        Created::free(handle);
        return result;
    }
    void free(CUdeviceptr block) override {
        CALL(cuMemUnmap, block, kPiece);
        CALL(cuMemAddressFree, block, kPiece);
    }
};

// Arrays of 512 MiB: 8192 x 4096 of four floats, or a cube of the same.
class Array : public Plain {
    using Plain::Plain;
    CUresult allocate(CUdeviceptr *block) override {
        const CUDA_ARRAY_DESCRIPTOR descriptor{8192, 4096, CU_AD_FORMAT_FLOAT, 4};
        CUarray array = nullptr;
        const CUresult result = CALL(cuArrayCreate_v2, &array, &descriptor);
        *block = reinterpret_cast<CUdeviceptr>(array);
        return result;
    }

  protected:
    void free(CUdeviceptr block) override {
        CALL(cuArrayDestroy, reinterpret_cast<CUarray>(block));  // NOLINT(performance-no-int-to-ptr)
    }
};

class Cube : public Array {
    using Array::Array;
    CUresult allocate(CUdeviceptr *block) override {
        const CUDA_ARRAY3D_DESCRIPTOR descriptor{1024, 1024, 32, CU_AD_FORMAT_FLOAT, 4, 0};
        CUarray array = nullptr;
        const CUresult result = CALL(cuArray3DCreate_v2, &array, &descriptor);
        *block = reinterpret_cast<CUdeviceptr>(array);
        return result;
    }
};

class Mipmapped : public Plain {
    using Plain::Plain;
    CUresult allocate(CUdeviceptr *block) override {
        const CUDA_ARRAY3D_DESCRIPTOR descriptor{8192, 4096, 0, CU_AD_FORMAT_FLOAT, 4, 0};
        CUmipmappedArray array = nullptr;
        const CUresult result = CALL(cuMipmappedArrayCreate, &array, &descriptor, 1U);
        *block = reinterpret_cast<CUdeviceptr>(array);
        return result;
    }
    void free(CUdeviceptr block) override {
        CALL(cuMipmappedArrayDestroy, reinterpret_cast<CUmipmappedArray>(block));  // NOLINT(performance-no-int-to-ptr)
    }
};

// Graphs that run one after the other share their memory, so the second has a node of twice the size.
class Graph : public Way {
  public:
    explicit Graph(bool per_thread) : Way(per_thread) {
        CALL(cuStreamCreate, &stream_, unsigned{CU_STREAM_NON_BLOCKING});
    }
    ~Graph() override { CALL(cuStreamDestroy_v2, stream_); }

    CUresult take(int nth) override {
        CUDA_MEM_ALLOC_NODE_PARAMS parameters;
        std::memset(&parameters, 0, sizeof parameters);
        parameters.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
        parameters.poolProps.location = device_0();
        parameters.bytesize = nth == 0 ? kPiece : 2 * kPiece;
        CUgraph graph = nullptr;
        CUgraphExec exec = nullptr;
        CUgraphNode taking = nullptr, giving = nullptr;
        CUresult result = CALL(cuGraphCreate, &graph, 0U);
        if (result == CUDA_SUCCESS)
            result = CALL(cuGraphAddMemAllocNode, &taking, graph, nullptr, std::size_t{0}, &parameters);
        if (result == CUDA_SUCCESS)
            result = CALL(cuGraphAddMemFreeNode, &giving, graph, &taking, std::size_t{1}, parameters.dptr);
        if (result == CUDA_SUCCESS) result = instantiate(&exec, graph);
        if (result == CUDA_SUCCESS) result = use(exec);
        if (exec) CALL(cuGraphExecDestroy, exec);
        if (graph) CALL(cuGraphDestroy, graph);
        return result;
    }
    void give_back() override {
        CALL(cuStreamSynchronize, stream_);
        CALL(cuDeviceGraphMemTrim, 0);
    }

  protected:
    virtual CUresult instantiate(CUgraphExec *exec, CUgraph graph) {
        return CALL(cuGraphInstantiateWithFlags, exec, graph, 0ULL);
    }
    virtual CUresult use(CUgraphExec exec) {
        const CUresult result = CALL_FORM(cuGraphLaunch, exec, stream_);
        CALL(cuStreamSynchronize, stream_);
        return result;
    }
    CUstream stream_ = nullptr;
};

class Uploaded : public Graph {
    using Graph::Graph;
    CUresult use(CUgraphExec exec) override {
        const CUresult result = CALL_FORM(cuGraphUpload, exec, stream_);
        CALL(cuStreamSynchronize, stream_);
        return result;
    }
};

// The two older forms of instantiation, which are alike.
template <bool is_second>
class InstantiatedByOldForm : public Graph {
    using Graph::Graph;
    CUresult instantiate(CUgraphExec *exec, CUgraph graph) override {
        return is_second ? CALL(cuGraphInstantiate_v2, exec, graph, nullptr, nullptr, std::size_t{0})
                         : CALL(cuGraphInstantiate, exec, graph, nullptr, nullptr, std::size_t{0});
    }
};

class InstantiatedWithUpload : public Graph {
    using Graph::Graph;
    CUresult instantiate(CUgraphExec *exec, CUgraph graph) override {
        CUDA_GRAPH_INSTANTIATE_PARAMS parameters;
        std::memset(&parameters, 0, sizeof parameters);
        parameters.flags = CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
        parameters.hUploadStream = stream_;
        const CUresult result = CALL_FORM(cuGraphInstantiateWithParams, exec, graph, &parameters);
        CALL(cuStreamSynchronize, stream_);
        return result;
    }
    CUresult use(CUgraphExec) override { return CUDA_SUCCESS; }
};

// Stacks: 2048 threads on each of the device's multiprocessors, 512 MiB of them in all; then as much again.
class Stack : public Way {
  public:
    explicit Stack(bool per_thread) : Way(per_thread) {
        int multiprocessors = 0;
        CALL(cuDeviceGetAttribute, &multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0);
        CALL(cuCtxGetLimit, &before_, CU_LIMIT_STACK_SIZE);
        if (multiprocessors > 0) step_ = kPiece / (2048 * static_cast<std::size_t>(multiprocessors)) / 16 * 16;
    }
    CUresult take(int nth) override {
        return CALL(cuCtxSetLimit, CU_LIMIT_STACK_SIZE, before_ + static_cast<std::size_t>(nth + 1) * step_);
    }
    void give_back() override { CALL(cuCtxSetLimit, CU_LIMIT_STACK_SIZE, before_); }

  private:
    std::size_t before_ = 1024;
    std::size_t step_ = kPiece / (2048 * 132) / 16 * 16;
};

template <class Kind>
void take_all(bool per_thread, CUresult (&results)[3]) {
    Kind way(per_thread);
    results[0] = way.take(0);
    results[1] = way.take(1);
    way.give_back();
    results[2] = way.take(0);
    way.give_back();
}

struct Named {
    const char *way;
    void (*take_all)(bool per_thread, CUresult (&results)[3]);
};
constexpr Named kWays[] = {
    {"cuMemAlloc_v2", &take_all<Plain>},
    {"cuMemAllocPitch_v2", &take_all<Pitched>},
    {"cuMemAllocManaged", &take_all<Managed>},
    {"cuMemAllocAsync", &take_all<StreamOrdered>},
    {"cuMemAllocFromPoolAsync", &take_all<FromPool>},
    {"cuMemPoolTrimTo", &take_all<FromKeepingPool>},
    {"cuMemGetDefaultMemPool", &take_all<FromGivenPool<true>>},
    {"cuMemGetMemPool", &take_all<FromGivenPool<false>>},
    {"cuMemCreate", &take_all<Created>},
    {"cuMemMap", &take_all<Mapped>},
    {"cuArrayCreate_v2", &take_all<Array>},
    {"cuArray3DCreate_v2", &take_all<Cube>},
    {"cuMipmappedArrayCreate", &take_all<Mipmapped>},
    {"cuGraphInstantiate", &take_all<InstantiatedByOldForm<false>>},
    {"cuGraphInstantiate_v2", &take_all<InstantiatedByOldForm<true>>},
    {"cuGraphLaunch", &take_all<Graph>},
    {"cuGraphUpload", &take_all<Uploaded>},
    {"cuGraphInstantiateWithParams", &take_all<InstantiatedWithUpload>},
    {"cuCtxSetLimit", &take_all<Stack>},
};

}  // namespace

const char *way_of(std::string_view symbol) {
    if (symbol.size() > 5 && symbol.substr(symbol.size() - 5) == "_ptsz") symbol.remove_suffix(5);
    for (const Named &named : kWays)
        if (symbol == named.way) return named.way;
    return nullptr;
}

std::string initialise(Find find) {
    the_find = find;
    CUcontext context = nullptr;
    const CUresult init = CALL(cuInit, 0U);
    const CUresult retain = CALL(cuDevicePrimaryCtxRetain, &context, 0);
    const CUresult current = context ? CALL(cuCtxSetCurrent, context) : kAbsent;
    return std::to_string(init) + " " + std::to_string(retain) + " " + std::to_string(current);
}

std::string allocate(Find find, const std::string &way) {
    the_find = find;
    if (!find(way.c_str())) return "absent";
    const std::string_view name = way_of(way);
    CUresult results[3] = {kAbsent, kAbsent, kAbsent};
    for (const Named &named : kWays)
        if (name == named.way) named.take_all(name != way, results);
    return std::to_string(results[0]) + " " + std::to_string(results[1]) + " " + std::to_string(results[2]);
}

bool tells_memory(std::string_view symbol) {
    return symbol == "cuDeviceTotalMem_v2" || symbol == "cuMemGetInfo_v2" || symbol == "nvmlDeviceGetMemoryInfo" ||
           symbol == "nvmlDeviceGetMemoryInfo_v2";
}

std::string figures(Find find, const std::string &function) {
    the_find = find;
    if (!find(function.c_str())) return "absent";
    CUresult result = kAbsent;
    unsigned long long total = 0;
    bool adds_up = true;
    nvmlDevice_t device = nullptr;
    if (function[0] == 'n') {
        auto *init = reinterpret_cast<decltype(&::nvmlInit_v2)>(find("nvmlInit_v2"));
        if (init) init();
        CALL(nvmlDeviceGetHandleByIndex_v2, 0U, &device);
    }
    if (function == "cuDeviceTotalMem_v2") {
        std::size_t bytes = 0;
        result = CALL(cuDeviceTotalMem_v2, &bytes, 0);
        total = bytes;
    } else if (function == "cuMemGetInfo_v2") {
        std::size_t free = 0, bytes = 0;
        result = CALL(cuMemGetInfo_v2, &free, &bytes);
        total = bytes;
        adds_up = free < total;
    } else if (function == "nvmlDeviceGetMemoryInfo") {
        nvmlMemory_t memory{};
        result = CALL(nvmlDeviceGetMemoryInfo, device, &memory);
        total = memory.total;
        adds_up = memory.used + memory.free == total;
    } else {
        nvmlMemory_v2_t memory{};
        memory.version = nvmlMemory_v2;
        result = CALL(nvmlDeviceGetMemoryInfo_v2, device, &memory);
        total = memory.total;
        adds_up = memory.used + memory.free + memory.reserved == total;
    }
    return std::to_string(result) + " " + std::to_string(total / kMiB) + " MiB" + (adds_up ? "" : ", not the sum");
}

}  // namespace conformance
