// The memory that the simulated driver takes for a module, as its image says (tests/sim/sim.h).
#include "contract.hpp"

using namespace contract;

TEST_CASE("an image declares what the module takes, alone or in the comments of another text") {
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
    CHECK(run_kernel(function) == CUDA_ERROR_INVALID_HANDLE);
}

IN_A_PROCESS("with eager loading a module takes its code when it is loaded", "", "CUDA_MODULE_LOADING=EAGER") {
    const Gpu gpu;
    const Module module("curb-sim-module code=22MiB\nkernel small\n");
    CHECK(gpu.taken() == 22 * kMiB);
}

TEST_CASE("code for which there is no room fails the launch, not the calls before") {
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
        CHECK(run_kernel(function) == CUDA_ERROR_OUT_OF_MEMORY);
    }
    CHECK(run_kernel(function) == CUDA_SUCCESS);
    CHECK(gpu.taken() == 64 * kMiB);
}

TEST_CASE("a kernel in a graph takes its memory when the graph is launched") {
    const bool captured = GENERATE(true, false);
    const Gpu gpu;
    const Stream stream;
    const Module module("curb-sim-module\nkernel frame local=8192\n");
    const CUfunction function = module.function("frame");
    CUgraph graph = nullptr;
    if (captured) {
        REQUIRE(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
        REQUIRE(run_kernel(function, stream) == CUDA_SUCCESS);
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
    {
        const Executable exec(graph);
        CHECK(gpu.taken() == 0);
        REQUIRE(cuGraphLaunch(exec, stream) == CUDA_SUCCESS);
        CHECK(gpu.taken() == 1848 * kMiB);
    }
    cuGraphDestroy(graph);
}

TEST_CASE("a module holds 2 MiB while it is loaded, a library once it is used in a context") {
    const Gpu gpu;
    const char image[] = "image";
    CUmodule module = nullptr;
    CUkernel kernel = nullptr;
    CUfunction function = nullptr;
    REQUIRE(cuModuleLoadData(&module, image) == CUDA_SUCCESS);
    CHECK(gpu.taken() == 2 * kMiB);
    REQUIRE(cuModuleUnload(module) == CUDA_SUCCESS);
    CHECK(gpu.taken() == 0);
    const CUlibrary library = load_library(image);
    REQUIRE(cuLibraryGetKernel(&kernel, library, "kernel") == CUDA_SUCCESS);
    CHECK(gpu.taken() == 0);
    REQUIRE(cuKernelGetFunction(&function, kernel) == CUDA_SUCCESS);
    CHECK(gpu.taken() == 2 * kMiB);
    CHECK(run_kernel(function) == CUDA_SUCCESS);
    REQUIRE(cuLibraryUnload(library) == CUDA_SUCCESS);
    CHECK(gpu.taken() == 0);
    CHECK(cuModuleLoad(&module, "/no/such/file") == CUDA_ERROR_FILE_NOT_FOUND);
}
