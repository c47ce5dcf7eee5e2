// Memory that the driver takes by a rule of its own, under a cap: contexts, stacks, arrays, graphs, code.

#include <unistd.h>

#include <fstream>
#include <functional>

#include "memory.hpp"

using namespace scenario;
namespace fs = std::filesystem;

namespace {

std::size_t stack_limit() {
    std::size_t limit = 0;
    MUST(cuCtxGetLimit(&limit, CU_LIMIT_STACK_SIZE));
    return limit;
}

}  // namespace

SCENARIO_NAMED(arrays_are_charged_as_the_driver_backs_them) {
    start();
    for (const CUDA_ARRAY3D_DESCRIPTOR &description :
         {floats(1024, 1024, 0, 0), floats(1000, 1000, 0, 0), floats(131072, 0, 0, 0), floats(500, 300, 100, 0),
          floats(300, 300, 17, 0), floats(1000, 1000, 6, CUDA_ARRAY3D_LAYERED)}) {
        CUarray array = nullptr;
        MUST(cuArray3DCreate_v2(&array, &description));
        EXPECT(curb_sim_held(0) > kContext);
        EXPECT_EQ(shown_held(), curb_sim_held(0));
        MUST(cuArrayDestroy(array));
        EXPECT_EQ(shown_held(), kContext);
        CUmipmappedArray mipmap = nullptr;
        MUST(cuMipmappedArrayCreate(&mipmap, &description, 4));
        EXPECT_EQ(shown_held(), curb_sim_held(0));
        MUST(cuMipmappedArrayDestroy(mipmap));
        EXPECT_EQ(shown_held(), kContext);
    }
}

SCENARIO_NAMED(small_arrays_share_granules_and_stop_at_the_cap) {
    start();
    const CUDA_ARRAY3D_DESCRIPTOR small = floats(64, 64, 0, 0);
    constexpr std::uint64_t kLeast = 64 * 64 * 4;
    CUarray array = nullptr;
    for (int i = 0; i < 1000; ++i) MUST(cuArray3DCreate_v2(&array, &small));
    const std::uint64_t held = curb_sim_held(0);
    EXPECT(held < kContext + 32 * MiB);  // not a granule each
    EXPECT_EQ(shown_held(held - kContext - 1000 * kLeast), held);
    const CUDA_ARRAY3D_DESCRIPTOR larger = floats(256, 256, 0, 0);
    EXPECT(fill([&] { return cuArray3DCreate_v2(&array, &larger); }) > 1200);  // 256 KiB each
}

SCENARIO_NAMED(arrays_that_are_mapped_later_are_not_charged) {
    start();
    for (const unsigned flag : {CUDA_ARRAY3D_SPARSE, CUDA_ARRAY3D_DEFERRED_MAPPING}) {
        const CUDA_ARRAY3D_DESCRIPTOR description = floats(32768, 16384, 0, flag);  // 2 GiB
        CUarray array = nullptr;
        MUST(cuArray3DCreate_v2(&array, &description));
        EXPECT_EQ(shown_held(), curb_sim_held(0));
        EXPECT_EQ(shown_held(), kContext);
        MUST(cuArrayDestroy(array));
    }
}

SCENARIO_NAMED(a_graph_that_keeps_its_memory_is_launched_again_at_the_cap) {
    start();
    const AllocatingGraph graph(256 * MiB, CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
    MUST(cuGraphLaunch(graph.executable, nullptr));
    MUST(cuCtxSynchronize());
    // Before it refuses, curb trims memory of graphs; this memory is in use.
    CUdeviceptr pointer = 0;
    EXPECT_EQ(cuMemAlloc_v2(&pointer, 256 * MiB), CUDA_ERROR_OUT_OF_MEMORY);
    MUST(cuMemAlloc_v2(&pointer, 64 * MiB));
    for (int i = 0; i < 3; ++i) MUST(cuGraphLaunch(graph.executable, nullptr));
    EXPECT_EQ(shown_held(), kContext + 320 * MiB);
    EXPECT_EQ(shown_held(), curb_sim_held(0));
    // After a free and a trim the next launch takes the memory again, so curb decides on it again.
    MUST(cuMemFree_v2(graph.block));
    MUST(cuDeviceGraphMemTrim(0));
    const CUdeviceptr other = take(300 * MiB);
    EXPECT_EQ(cuGraphLaunch(graph.executable, nullptr), CUDA_ERROR_OUT_OF_MEMORY);
    MUST(cuMemFree_v2(other));
    MUST(cuGraphLaunch(graph.executable, nullptr));
    EXPECT_EQ(shown_held(), curb_sim_held(0));
}

SCENARIO_NAMED(a_graph_that_the_driver_will_not_destroy_is_held_to_the_cap) {
    start();
    const AllocatingGraph graph(256 * MiB);
    curb_sim_fail_next("cuGraphExecDestroy", CUDA_ERROR_UNKNOWN, 1);
    EXPECT_EQ(cuGraphExecDestroy(graph.executable), CUDA_ERROR_UNKNOWN);
    const CUdeviceptr other = take(256 * MiB);
    EXPECT_EQ(cuGraphLaunch(graph.executable, nullptr), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT(curb_sim_held(0) <= kCap);
    MUST(cuMemFree_v2(other));
    MUST(cuGraphLaunch(graph.executable, nullptr));
    EXPECT_EQ(shown_held(), curb_sim_held(0));
}

SCENARIO_NAMED(a_graph_without_memory_is_uploaded_as_it_is_instantiated) {
    start();
    CUgraph graph = nullptr;
    CUgraphExec executable = nullptr;
    MUST(cuGraphCreate(&graph, 0));
    CUDA_GRAPH_INSTANTIATE_PARAMS parameters{};
    parameters.flags = CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
    parameters.hUploadStream = make_stream();
    MUST(cuGraphInstantiateWithParams(&executable, graph, &parameters));
    EXPECT_EQ(shown_held(), kContext);
    MUST(cuGraphLaunch(executable, parameters.hUploadStream));
}

SCENARIO_NAMED(a_captured_graph_is_charged_when_it_is_launched) {
    start();
    const CUstream stream = make_stream();
    const auto captured = [&](std::uint64_t bytes) {
        CUdeviceptr block = 0;
        CUgraph graph = nullptr;
        CUgraphExec executable = nullptr;
        MUST(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
        MUST(cuMemAllocAsync(&block, bytes, stream));
        MUST(cuMemFreeAsync(block, stream));
        MUST(cuStreamEndCapture(stream, &graph));
        MUST(cuGraphInstantiateWithFlags(&executable, graph, 0));
        return executable;
    };
    const CUgraphExec fits = captured(256 * MiB), does_not = captured(512 * MiB);
    EXPECT_EQ(curb_sim_held(0), kContext);
    EXPECT_EQ(cuGraphUpload(does_not, stream), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(cuGraphLaunch(does_not, stream), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(curb_sim_held(0), kContext);
    MUST(cuGraphUpload(fits, stream));
    EXPECT_EQ(shown_held(), kContext + 256 * MiB);
    for (int i = 0; i < 3; ++i) MUST(cuGraphLaunch(fits, stream));
    MUST(cuDeviceGraphMemTrim(0));
    EXPECT_EQ(shown_held(), curb_sim_held(0));
    // After a trim a launch takes the memory again, so curb decides on it again.
    const CUdeviceptr block = take(350 * MiB);
    EXPECT_EQ(cuGraphLaunch(fits, stream), CUDA_ERROR_OUT_OF_MEMORY);
    MUST(cuMemFree_v2(block));
    MUST(cuGraphLaunch(fits, stream));
    EXPECT_EQ(shown_held(), curb_sim_held(0));
}

SCENARIO_NAMED(a_stack_is_charged_for_every_resident_thread) {
    start();
    MUST(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 2048));
    EXPECT_EQ(curb_sim_held(0), kContext + 264 * MiB);
    EXPECT_EQ(shown_held(), curb_sim_held(0));
    EXPECT_EQ(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 64 * KiB), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, ~std::size_t{0}), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(stack_limit(), 2048U);
    EXPECT_EQ(shown_held(), curb_sim_held(0));
    MUST(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 1024));
    EXPECT_EQ(shown_held(), kContext);
    // Below the initial limit the driver returns a part of the context itself.
    MUST(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 512));
    EXPECT_EQ(curb_sim_held(0), kContext - 132 * MiB);
    EXPECT_EQ(shown_held(), curb_sim_held(0));
    const CUdeviceptr block = take(500 * MiB);
    EXPECT_EQ(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 1024), CUDA_ERROR_OUT_OF_MEMORY);
    MUST(cuMemFree_v2(block));
    MUST(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 1536));
    EXPECT_EQ(shown_held(), curb_sim_held(0));
    // A context's stack ends with it.
    MUST(cuDevicePrimaryCtxReset_v2(0));
    const CUcontext own = make_context();
    MUST(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 2048));
    EXPECT_EQ(shown_held(), curb_sim_held(0));
    MUST(cuCtxDestroy_v2(own));
    make_context();
    EXPECT_EQ(shown_held(), kContext);
    EXPECT_EQ(curb_sim_held(0), kContext);
}

SCENARIO_NAMED(local_memory_of_a_kernel_is_charged_at_its_launch) {
    start();
    const CUmodule module =
        load_module("curb-sim-module\nkernel small\nkernel some local=2048\nkernel much local=65536\n");
    const CUfunction small = kernel_of(module, "small"), some = kernel_of(module, "some"),
                     much = kernel_of(module, "much");
    const std::uint64_t code = curb_sim_held(0) - kContext;
    MUST(launch(small));
    EXPECT_EQ(launch(much), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(curb_sim_held(0), kContext + code);
    MUST(launch(some));
    EXPECT_EQ(curb_sim_held(0), kContext + code + 264 * MiB);
    EXPECT_EQ(shown_held(code), curb_sim_held(0));
    EXPECT_EQ(launch(much), CUDA_ERROR_OUT_OF_MEMORY);
    // This returns the local memory. The next launch takes it again, so curb decides on it again.
    MUST(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 1024));
    const CUdeviceptr block = take(300 * MiB);
    EXPECT_EQ(launch(some), CUDA_ERROR_OUT_OF_MEMORY);
    MUST(launch(small));
    MUST(cuMemFree_v2(block));
    MUST(launch(some));
    EXPECT_EQ(shown_held(code), curb_sim_held(0));
}

SCENARIO_NAMED(a_heap_that_would_not_fit_is_refused_and_room_is_kept_for_one_that_does) {
    start();
    EXPECT_EQ(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 2 * GiB), CUDA_ERROR_OUT_OF_MEMORY);
    MUST(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 108 * MiB));
    const int served = fill([&] {
        CUdeviceptr pointer = 0;
        return cuMemAlloc_v2(&pointer, 2 * MiB);
    });
    EXPECT_EQ(served, (1024 - 518 - 128 - 100) / 2);
    MUST(launch(kernel_of(load_module("curb-sim-module\nkernel alloc malloc\n"), "alloc")));
    EXPECT(curb_sim_held(0) > 900 * MiB);
    EXPECT(curb_sim_held(0) <= kCap);
}

SCENARIO_NAMED(a_cap_smaller_than_a_context_refuses_the_context) {  // cap: 256 MiB
    CUcontext context = nullptr;
    MUST(cuInit(0));
    EXPECT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(cuCtxCreate_v2(&context, 0, 0), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT(context == nullptr);
    EXPECT_EQ(curb_sim_held(0), 0U);
    std::size_t total = 0;
    MUST(cuDeviceTotalMem_v2(&total, 0));
    EXPECT_EQ(total, 256 * MiB);
}

SCENARIO_NAMED(every_form_of_a_context_is_counted) {
    MUST(cuInit(0));
    const std::vector<CUresult (*)(CUcontext *)> forms = {
        [](CUcontext *context) { return cuCtxCreate_v2(context, 0, 0); },
        [](CUcontext *context) { return cuCtxCreate_v3(context, nullptr, 0, 0, 0); },
        [](CUcontext *context) { return cuCtxCreate_v4(context, nullptr, 0, 0); },
    };
    for (const auto create : forms)
        for (const auto destroy : {cuCtxDestroy_v2, cuCtxDestroy, cuCtxDetach}) {
            CUcontext context = nullptr, second = nullptr;
            MUST(create(&context));
            take(64 * MiB);
            EXPECT_EQ(shown_held(), kContext + 64 * MiB);
            EXPECT_EQ(create(&second), CUDA_ERROR_OUT_OF_MEMORY);
            EXPECT_EQ(cuCtxCreate(&second, 0, 0), CUDA_ERROR_OUT_OF_MEMORY);
            CUcontext current = nullptr;
            MUST(cuCtxGetCurrent(&current));
            EXPECT(current == context);
            MUST(destroy(context));
            EXPECT_EQ(curb_sim_held(0), 0U);
        }
    for (const auto end : {cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, cuDevicePrimaryCtxReset,
                           cuDevicePrimaryCtxReset_v2}) {
        start();
        EXPECT_EQ(shown_held(), kContext);
        take(64 * MiB);
        MUST(end(0));
        EXPECT_EQ(curb_sim_held(0), 0U);
    }
    start();
    EXPECT_EQ(shown_held(), kContext);
}

SCENARIO_NAMED(the_form_of_32_bits_makes_no_context_and_frees_nothing_for_it) {
    start();
    keep_everything(default_pool());
    CUdeviceptr block = 0;
    MUST(cuMemAllocAsync(&block, 256 * MiB, nullptr));
    MUST(cuMemFreeAsync(block, nullptr));
    MUST(cuCtxSynchronize());
    CUcontext context = nullptr;
    EXPECT_EQ(cuCtxCreate(&context, 0, 0), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(curb_sim_held(0), kContext + 256 * MiB);
}

SCENARIO_NAMED(every_form_of_a_launch_is_admitted) {
    start();
    const CUfunction function = kernel_of(load_module("curb-sim-module\nkernel much local=65536\n"), "much");
    auto configuration = families::zeroed<CUlaunchConfig>();
    configuration.gridDimX = configuration.gridDimY = configuration.gridDimZ = 1;
    configuration.blockDimX = configuration.blockDimY = configuration.blockDimZ = 1;
    for (const auto launch : {cuLaunchKernel, cuLaunchKernel_ptsz})
        EXPECT_EQ(launch(function, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr), CUDA_ERROR_OUT_OF_MEMORY);
    for (const auto launch : {cuLaunchKernelEx, cuLaunchKernelEx_ptsz})
        EXPECT_EQ(launch(&configuration, function, nullptr, nullptr), CUDA_ERROR_OUT_OF_MEMORY);
    for (const auto launch : {cuLaunchCooperativeKernel, cuLaunchCooperativeKernel_ptsz})
        EXPECT_EQ(launch(function, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr), CUDA_ERROR_OUT_OF_MEMORY);
    // A CUkernel, which is valid in every context, too.
    const CUlibrary library = load_library("curb-sim-module\nkernel much local=65536\n");
    CUkernel kernel = nullptr;
    MUST(cuLibraryGetKernel(&kernel, library, "much"));
    EXPECT_EQ(launch(reinterpret_cast<CUfunction>(kernel)), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT(curb_sim_held(0) < kContext + 16 * MiB);
}

// cuDNN asks for its kernels' functions again and again; curb must not measure each time.
SCENARIO_NAMED(code_that_is_loaded_is_not_measured_again) {
    start();
    CUlibrary library = nullptr;
    CUkernel kernel = nullptr;
    CUfunction function = nullptr;
    CUmodule module = nullptr;
    CUdeviceptr start_of = 0;
    std::size_t bytes = 0;
    const auto load = [&] {
        library = load_library("curb-sim-module global=1MiB\nkernel k\n");
        MUST(cuLibraryGetKernel(&kernel, library, "k"));
    };
    const auto ask = [&] {
        const unsigned before = curb_sim_process_lists();
        CUfunction other = nullptr;
        MUST(cuKernelGetFunction(&other, kernel));
        if (!function) function = other;
        MUST(cuFuncLoad(function));
        MUST(cuLibraryGetModule(&module, library));
        MUST(cuLibraryGetGlobal(&start_of, &bytes, library, "global"));
        return curb_sim_process_lists() - before;
    };
    load();
    // Near the cap curb measures before each decision.
    std::vector<CUdeviceptr> blocks;
    for (CUdeviceptr block = 0; cuMemAlloc_v2(&block, 2 * MiB) == CUDA_SUCCESS;) blocks.push_back(block);
    EXPECT(ask() > 0);
    unsigned again = 0;
    for (int i = 0; i < 100; ++i) again += ask();
    EXPECT(again < 10);  // the worker may measure meanwhile
    MUST(cuLibraryUnload(library));
    function = nullptr;
    load();  // the driver reuses the handles
    EXPECT(ask() > 0);
    for (const CUdeviceptr block : blocks) MUST(cuMemFree_v2(block));
}

SCENARIO_NAMED(every_form_of_loading_code_is_measured) {
    start();
    const char image[] = "curb-sim-module global=256MiB\nkernel k\n";
    const fs::path file = fs::temp_directory_path() / ("curb-scenario-" + std::to_string(getpid()));
    std::ofstream(file) << image;
    CUmodule module = nullptr;
    const std::vector<std::function<CUresult()>> forms = {
        [&] { return cuModuleLoad(&module, file.c_str()); },
        [&] { return cuModuleLoadData(&module, image); },
        [&] { return cuModuleLoadDataEx(&module, image, 0, nullptr, nullptr); },
        [&] { return cuModuleLoadFatBinary(&module, image); },
    };
    for (const auto &load : forms) {
        MUST(load());
        const CUmodule first = module;
        const std::uint64_t held = curb_sim_held(0);
        EXPECT_EQ(shown_held(held - kContext), held);
        EXPECT_EQ(load(), CUDA_ERROR_OUT_OF_MEMORY);
        EXPECT_EQ(curb_sim_held(0), held);
        MUST(cuModuleUnload(first));
        EXPECT_EQ(shown_held(), kContext);
    }
    fs::remove(file);
    // curb does not undo a lazy load of code, but refuses further code while more than the cap is held.
    std::vector<CUlibrary> libraries;
    int served = 0;
    CUdeviceptr start = 0;
    std::size_t bytes = 0;
    for (CUresult result = CUDA_SUCCESS; result == CUDA_SUCCESS && served < 20; served += result == CUDA_SUCCESS) {
        libraries.push_back(load_library(image));
        result = served % 2 ? cuLibraryGetGlobal(&start, &bytes, libraries.back(), "global")
                            : cuLibraryGetModule(&module, libraries.back());
    }
    EXPECT_EQ(served, 2);
    CUkernel kernel = nullptr;
    CUfunction function = nullptr;
    MUST(cuLibraryGetKernel(&kernel, libraries.front(), "k"));
    MUST(cuKernelGetFunction(&function, kernel));
    MUST(cuFuncLoad(function));
    for (const CUlibrary library : libraries) MUST(cuLibraryUnload(library));
    EXPECT_EQ(shown_held(), kContext);
}
