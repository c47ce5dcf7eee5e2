// Ways in which a host without memory once harmed programs under curb.
#include <csignal>
#include <cstdlib>
#include <ctime>

#include "interposed.hpp"
#include "runs.hpp"

using namespace fault;

namespace {

// During its lifetime allocations of the library fail, or only the next one of this thread.
class WithoutMemory {
  public:
    explicit WithoutMemory(bool next_alone = false) {
        if (next_alone)
            calls_.plan_next_of_this_thread();
        else
            calls_.plan({1, 0, false, true});
    }
    ~WithoutMemory() { calls_.pause(true); }
    WithoutMemory(const WithoutMemory &) = delete;
    WithoutMemory &operator=(const WithoutMemory &) = delete;

  private:
    HostCalls calls_{Kind::allocation};
};

constexpr const char *kOfEnvironment = "";  // CURB_CAP alone

}  // namespace

WAY(cuda_cannot_be_initialised_without_memory_to_read_the_policy, kCapped) {
    {
        const WithoutMemory none;
        p.call("cuInit", CUDA_ERROR_OUT_OF_MEMORY, [] { return cuInit(0); });
    }
    p.start();
    p.cap_holds(kCap);
}

WAY(a_cap_of_the_environment_holds_though_memory_lacked_when_it_was_read, kOfEnvironment) {
    ::setenv("CURB_CAP", "2GiB", 1);
    {
        const WithoutMemory none(true);
        p.call("cuInit", CUDA_SUCCESS, [] { return cuInit(0); });
    }
    p.start();
    p.cap_holds(kCap);
}

WAY(a_context_ends_without_memory, kCapped) {
    p.start();
    const WithoutMemory none;
    DO(cuDevicePrimaryCtxReset_v2, 0);
}

WAY(memory_is_freed_and_unmapped_without_memory, kCapped) {
    p.start();
    const CUmemAllocationProp where = families::on_device(0);
    CUdeviceptr range = 0, block = 0;
    CUmemGenericAllocationHandle handle = 0;
    DO(cuMemAlloc_v2, &block, 64 * MiB);
    DO(cuMemAddressReserve, &range, 64 * MiB, 0, 0, 0);
    DO(cuMemCreate, &handle, 64 * MiB, &where, 0);
    DO(cuMemMap, range, 64 * MiB, 0, handle, 0);
    DO(cuMemRelease, handle);
    {
        const WithoutMemory none;
        DO(cuMemFree_v2, block);
        DO(cuMemUnmap, range, 64 * MiB);
    }
    p.holds(curb::policy::Kind::plain, 0);
    p.holds(curb::policy::Kind::vmm, 0);
}

WAY(a_context_that_cannot_be_recorded_is_undone, kCapped) {
    p.start();
    CUcontext own = nullptr;
    {
        const WithoutMemory none;
        p.call("cuCtxCreate_v2", CUDA_ERROR_OUT_OF_MEMORY, [&] { return cuCtxCreate_v2(&own, 0, 0); });
    }
    if (p.read_books().contexts != 1) p.problem("there is another number of contexts");
    DO(cuCtxCreate_v2, &own, 0, 0);
}

WAY(a_graph_is_launched_or_refused_without_memory, kCapped) {
    p.start();
    CUDA_MEM_ALLOC_NODE_PARAMS parameters = families::memory_node(3 * GiB);
    CUgraph graph = nullptr;
    CUgraphNode node = nullptr;
    CUgraphExec executable = nullptr;
    DO(cuGraphCreate, &graph, 0);
    DO(cuGraphAddMemAllocNode, &node, graph, nullptr, 0, &parameters);
    {
        const WithoutMemory none(true);
        REFUSED(cuGraphInstantiateWithFlags, &executable, graph, 0);
    }
    DO(cuGraphInstantiateWithFlags, &executable, graph, 0);
    {
        const WithoutMemory none(true);
        REFUSED(cuGraphLaunch, executable, nullptr);
    }
    REFUSED(cuGraphLaunch, executable, nullptr);
}

WAY(a_release_that_lacks_memory_is_done_when_there_is_some, kCapped) {
    p.start();
    p.release(R"(["pools"])");  // the control thread has allocated what it needs
    {
        const WithoutMemory none;
        for (int i = 0; i < 20; ++i) {
            ::raise(SIGUSR1);
            const timespec moment{0, 1'000'000};
            nanosleep(&moment, nullptr);
        }
    }
    p.release(R"(["pools"])");
    p.cap_holds(kCap);
}

int main(int argc, char **argv) {
    if (!find_library()) return 2;
    return run_cases(argc, argv);
}
