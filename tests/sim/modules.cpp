#include "modules.hpp"

#include <set>

#include "driver.hpp"
#include "environment.hpp"
#include "image.hpp"
#include "running.hpp"

namespace curb::sim {

namespace {

struct Module {
    Module(const Image &its_image, const Context &its_context)
        : context(its_context.handle), device(its_context.device), image(its_image) {}
    ~Module();
    Module(const Module &) = delete;
    Module &operator=(const Module &) = delete;

    CUmodule handle = nullptr;
    CUcontext context;
    int device;
    Image image;
    CUlibrary library = nullptr;  // loaded for it
    uint64_t taken = 0;
    bool has_code = false;
    CUdeviceptr global = 0;
};

Module::~Module() {
    credit(device, Use::modules, taken);
    if (!global) return;
    driver().allocations.erase(global);
    driver().addresses.give(global, round_up(image.global, kGranule));
}

struct Library {
    CUlibrary handle = nullptr;
    Image image;
};

struct Kernel {
    CUkernel handle = nullptr;
    CUlibrary library = nullptr;
    KernelNeeds needs;
};

struct Function {
    CUfunction handle = nullptr;
    CUmodule module = nullptr;
    KernelNeeds needs;
};

struct Code {
    Registry<CUmodule, Module> modules;
    Registry<CUlibrary, Library> libraries;
    Registry<CUkernel, Kernel> kernels;
    Registry<CUfunction, Function> functions;
};

Code &code() {
    static Code &all = *new Code;
    return all;
}

// Code is loaded with the first function that is got of a module. When the device has no room then, that call succeeds
// all the same, and the launch fails (docs/results/driver.md).
CUresult load_code(Module &module) {
    if (module.has_code) return CUDA_SUCCESS;
    if (const CUresult error = charge(module.device, Use::modules, module.image.code)) return error;
    module.taken += module.image.code;
    module.has_code = true;
    return CUDA_SUCCESS;
}

// What all modules of its kind share in a context, and what stays when they are gone.
CUresult take_once(Context &context, uint64_t bytes) {
    if (bytes <= context.code_kept) return CUDA_SUCCESS;
    if (const CUresult error = charge(context.device, Use::modules, bytes - context.code_kept)) return error;
    context.code_kept = bytes;
    return CUDA_SUCCESS;
}

CUresult take_global(Module &module) {
    const uint64_t size = round_up(module.image.global, kGranule);
    if (!size) return CUDA_SUCCESS;
    if (const CUresult error = charge(module.device, Use::modules, size)) return error;
    module.taken += size;
    module.global = driver().addresses.take(size, kGranule);
    if (!module.global) return CUDA_ERROR_OUT_OF_MEMORY;
    add_allocation({.kind = Allocation::Kind::global,
                    .start = module.global,
                    .bytes = module.image.global,
                    .device = module.device,
                    .context = module.context});
    return CUDA_SUCCESS;
}

CUresult load(const Image &image, CUlibrary library, CUmodule *out) {
    Context *context = nullptr;
    if (const CUresult error = current_context(&context)) return error;
    auto made = std::make_unique<Module>(image, *context);
    made->library = library;
    if (const CUresult error = charge(made->device, Use::modules, image.data)) return error;
    made->taken = image.data;
    if (const CUresult error = take_global(*made)) return error;
    if (environment_is("CUDA_MODULE_LOADING", "EAGER"))
        if (const CUresult error = load_code(*made)) return error;
    if (const CUresult error = take_once(*context, image.once)) return error;
    *out = code().modules.add(std::move(made))->handle;
    return CUDA_SUCCESS;
}

CUresult load_image(CUmodule *module, const void *image) {
    return module && image ? load(read_image(image), nullptr, module) : CUDA_ERROR_INVALID_VALUE;
}

// A library is loaded into a context when something of it is first wanted there.
CUresult module_of(CUlibrary handle, Module **module) {
    Context *context = nullptr;
    if (const CUresult error = current_context(&context)) return error;
    *module = nullptr;
    code().modules.each([&](Module &one) {
        if (one.library == handle && one.context == context->handle) *module = &one;
    });
    if (*module) return CUDA_SUCCESS;
    CUmodule loaded = nullptr;
    if (const CUresult error = load(code().libraries.find(handle)->image, handle, &loaded)) return error;
    *module = code().modules.find(loaded);
    return CUDA_SUCCESS;
}

CUfunction function_in(Module &module, const KernelNeeds &needs) {
    load_code(module);
    auto made = std::make_unique<Function>();
    made->module = module.handle;
    made->needs = needs;
    return code().functions.add(std::move(made))->handle;
}

template <class Predicate>
void unload_if(Predicate predicate) {
    std::set<CUmodule> gone;
    code().modules.each([&](const Module &module) {
        if (predicate(module)) gone.insert(module.handle);
    });
    code().functions.remove_if([&](const Function &function) { return gone.count(function.module) != 0; });
    code().modules.remove_if([&](const Module &module) { return gone.count(module.handle) != 0; });
}

// A kernel's handle may stand in for a function's (cuda.h, cuLaunchKernel).
bool is_launchable(CUfunction function) {
    return code().functions.find(function) || code().kernels.find(reinterpret_cast<CUkernel>(function));
}

// What a launch takes on top of what the context has: the kernel's code if it is not there yet, local memory beyond the
// stack of each resident thread, the heap.
CUresult prepare(CUfunction handle, CUcontext context_handle) {
    Context *context = find_context(context_handle);
    const Function *function = code().functions.find(handle);
    const Kernel *kernel = code().kernels.find(reinterpret_cast<CUkernel>(handle));
    if (!context || (!function && !kernel)) return CUDA_ERROR_INVALID_HANDLE;
    Module *module = function ? code().modules.find(function->module) : nullptr;
    if (!module)
        if (const CUresult error = module_of(kernel->library, &module)) return error;
    if (const CUresult error = load_code(*module)) return error;
    const KernelNeeds &needs = function ? function->needs : kernel->needs;
    if (needs.local > context->stack_limit)
        if (const CUresult error = context->set_stack(needs.local)) return error;
    return needs.mallocs ? context->take_heap() : CUDA_SUCCESS;
}

const KernelNeeds &needs_of(CUfunction handle) {
    const Function *function = code().functions.find(handle);
    return function ? function->needs : code().kernels.find(reinterpret_cast<CUkernel>(handle))->needs;
}

// `arguments`: each points to the value of a parameter.
void run(const KernelNeeds &needs, const Stream &stream, void **arguments) {
    std::vector<CUdeviceptr> addresses;
    for (uint64_t i = 0; arguments && i < needs.blocks; ++i)
        addresses.push_back(*static_cast<const CUdeviceptr *>(arguments[i]));
    begin_kernel(stream, std::chrono::microseconds(needs.us), addresses);
}

CUresult launch(CUfunction function, const CUlaunchConfig &config, void **arguments) {
    if (!is_launchable(function)) return CUDA_ERROR_INVALID_HANDLE;
    if (!config.gridDimX || !config.gridDimY || !config.gridDimZ || !config.blockDimX || !config.blockDimY ||
        !config.blockDimZ)
        return CUDA_ERROR_INVALID_VALUE;
    Stream *stream = nullptr;
    if (const CUresult error = find_stream(config.hStream, &stream)) return error;
    const CUcontext context = stream->context;
    const CUresult result = submit(
        *stream, CU_GRAPH_NODE_TYPE_KERNEL, [] {}, [=] { return prepare(function, context); });
    if (const KernelNeeds &needs = needs_of(function); !result && !stream->capture && needs.us)
        run(needs, *stream, arguments);
    return result;
}

CUresult attribute_of(const KernelNeeds &needs, CUfunction_attribute attribute, int *value) {
    if (!value) return CUDA_ERROR_INVALID_VALUE;
    switch (attribute) {
        case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = 1024; break;
        case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES: *value = static_cast<int>(needs.local); break;
        default: *value = 0; break;  // what is not modelled is not there
    }
    return CUDA_SUCCESS;
}

CUresult find_function(CUmodule handle, const char *name, CUfunction *function) {
    Module *module = code().modules.find(handle);
    if (!module) return CUDA_ERROR_INVALID_HANDLE;
    if (!function || !name || !*name) return CUDA_ERROR_INVALID_VALUE;
    const KernelNeeds *needs = module->image.find(name);
    if (!needs) return CUDA_ERROR_NOT_FOUND;
    *function = function_in(*module, *needs);
    return CUDA_SUCCESS;
}

// One variable, under whatever name.
CUresult global_of(const Module &module, CUdeviceptr *start, size_t *bytes) {
    if (!module.global) return CUDA_ERROR_NOT_FOUND;
    if (start) *start = module.global;
    if (bytes) *bytes = module.image.global;
    return CUDA_SUCCESS;
}

}  // namespace

void unload_modules_of(CUcontext context) {
    unload_if([=](const Module &module) { return module.context == context; });
}

CUresult add_kernel_node(Graph &graph, const CUDA_KERNEL_NODE_PARAMS &params, CUgraphNode *node) {
    const CUfunction function = params.func ? params.func : reinterpret_cast<CUfunction>(params.kern);
    if (!is_launchable(function)) return CUDA_ERROR_INVALID_VALUE;
    Context *context = params.ctx ? find_context(params.ctx) : nullptr;
    if (!context)
        if (const CUresult error = current_context(&context)) return error;
    *node = add_node(graph, CU_GRAPH_NODE_TYPE_KERNEL, {}, 0);
    graph.nodes.back()->prepare = [=, handle = context->handle] { return prepare(function, handle); };
    return CUDA_SUCCESS;
}

SIM_CU(cuModuleLoad, (CUmodule * module, const char *path), (module, path)) {
    if (!module || !path) return CUDA_ERROR_INVALID_VALUE;
    Image image;
    return read_image_file(path, &image) ? load(image, nullptr, module) : CUDA_ERROR_FILE_NOT_FOUND;
}

SIM_CU(cuModuleLoadData, (CUmodule * module, const void *image), (module, image)) { return load_image(module, image); }
SIM_CU(cuModuleLoadFatBinary, (CUmodule * module, const void *image), (module, image)) {
    return load_image(module, image);
}
SIM_CU(cuModuleLoadDataEx,
       (CUmodule * module, const void *image, [[maybe_unused]] unsigned count, [[maybe_unused]] CUjit_option *options,
        [[maybe_unused]] void **values),
       (module, image, count, options, values)) {
    return load_image(module, image);
}

SIM_CU(cuModuleUnload, (CUmodule handle), (handle)) {
    if (!code().modules.find(handle)) return CUDA_ERROR_INVALID_HANDLE;
    unload_if([=](const Module &module) { return module.handle == handle; });
    return CUDA_SUCCESS;
}

SIM_CU(cuModuleGetFunction, (CUfunction * function, CUmodule module, const char *name), (function, module, name)) {
    return find_function(module, name, function);
}

SIM_CU(cuModuleGetGlobal_v2, (CUdeviceptr * start, size_t *bytes, CUmodule handle, const char *name),
       (start, bytes, handle, name)) {
    const Module *module = code().modules.find(handle);
    if (!module) return CUDA_ERROR_INVALID_HANDLE;
    return name ? global_of(*module, start, bytes) : CUDA_ERROR_INVALID_VALUE;
}

static CUresult add_library(CUlibrary *library, const Image &image) {
    auto made = std::make_unique<Library>();
    made->image = image;
    *library = code().libraries.add(std::move(made))->handle;
    return CUDA_SUCCESS;
}

SIM_CU(cuLibraryLoadData,
       (CUlibrary * library, const void *image, [[maybe_unused]] CUjit_option *jit_options,
        [[maybe_unused]] void **jit_values, [[maybe_unused]] unsigned jit_count,
        [[maybe_unused]] CUlibraryOption *options, [[maybe_unused]] void **values, [[maybe_unused]] unsigned count),
       (library, image, jit_options, jit_values, jit_count, options, values, count)) {
    return library && image ? add_library(library, read_image(image)) : CUDA_ERROR_INVALID_VALUE;
}

SIM_CU(cuLibraryLoadFromFile,
       (CUlibrary * library, const char *path, [[maybe_unused]] CUjit_option *jit_options,
        [[maybe_unused]] void **jit_values, [[maybe_unused]] unsigned jit_count,
        [[maybe_unused]] CUlibraryOption *options, [[maybe_unused]] void **values, [[maybe_unused]] unsigned count),
       (library, path, jit_options, jit_values, jit_count, options, values, count)) {
    if (!library || !path) return CUDA_ERROR_INVALID_VALUE;
    Image image;
    return read_image_file(path, &image) ? add_library(library, image) : CUDA_ERROR_FILE_NOT_FOUND;
}

SIM_CU(cuLibraryUnload, (CUlibrary handle), (handle)) {
    if (!code().libraries.remove(handle)) return CUDA_ERROR_INVALID_HANDLE;
    code().kernels.remove_if([=](const Kernel &kernel) { return kernel.library == handle; });
    unload_if([=](const Module &module) { return module.library == handle; });
    return CUDA_SUCCESS;
}

SIM_CU(cuLibraryGetKernel, (CUkernel * kernel, CUlibrary handle, const char *name), (kernel, handle, name)) {
    const Library *library = code().libraries.find(handle);
    if (!library) return CUDA_ERROR_INVALID_HANDLE;
    if (!kernel || !name || !*name) return CUDA_ERROR_INVALID_VALUE;
    const KernelNeeds *needs = library->image.find(name);
    if (!needs) return CUDA_ERROR_NOT_FOUND;
    auto made = std::make_unique<Kernel>();
    made->library = handle;
    made->needs = *needs;
    *kernel = code().kernels.add(std::move(made))->handle;
    return CUDA_SUCCESS;
}

SIM_CU(cuLibraryGetModule, (CUmodule * module, CUlibrary library), (module, library)) {
    if (!code().libraries.find(library)) return CUDA_ERROR_INVALID_HANDLE;
    if (!module) return CUDA_ERROR_INVALID_VALUE;
    Module *loaded = nullptr;
    if (const CUresult error = module_of(library, &loaded)) return error;
    *module = loaded->handle;
    return CUDA_SUCCESS;
}

SIM_CU(cuLibraryGetGlobal, (CUdeviceptr * start, size_t *bytes, CUlibrary library, const char *name),
       (start, bytes, library, name)) {
    if (!code().libraries.find(library)) return CUDA_ERROR_INVALID_HANDLE;
    if (!name) return CUDA_ERROR_INVALID_VALUE;
    if (!code().libraries.find(library)->image.global) return CUDA_ERROR_NOT_FOUND;
    Module *module = nullptr;
    if (const CUresult error = module_of(library, &module)) return error;
    return global_of(*module, start, bytes);
}

SIM_CU(cuKernelGetFunction, (CUfunction * function, CUkernel handle), (function, handle)) {
    const Kernel *kernel = code().kernels.find(handle);
    if (!kernel) return CUDA_ERROR_INVALID_HANDLE;
    if (!function) return CUDA_ERROR_INVALID_VALUE;
    Module *module = nullptr;
    if (const CUresult error = module_of(kernel->library, &module)) return error;
    *function = function_in(*module, kernel->needs);
    return CUDA_SUCCESS;
}

SIM_CU(cuKernelGetAttribute, (int *value, CUfunction_attribute attribute, CUkernel handle, CUdevice device),
       (value, attribute, handle, device)) {
    Device *found = nullptr;
    if (const CUresult error = find_device(device, &found)) return error;
    const Kernel *kernel = code().kernels.find(handle);
    return kernel ? attribute_of(kernel->needs, attribute, value) : CUDA_ERROR_INVALID_HANDLE;
}

SIM_CU_STREAM(cuLaunchKernel,
              (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
               unsigned block_y, unsigned block_z, unsigned shared, CUstream stream, void **arguments,
               [[maybe_unused]] void **extra),
              (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, arguments, extra)) {
    return launch(function, {grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, nullptr, 0}, arguments);
}

SIM_CU_STREAM(cuLaunchCooperativeKernel,
              (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
               unsigned block_y, unsigned block_z, unsigned shared, CUstream stream, void **arguments),
              (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, arguments)) {
    return launch(function, {grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, nullptr, 0}, arguments);
}

SIM_CU_STREAM(cuLaunchKernelEx,
              (const CUlaunchConfig *config, CUfunction function, void **arguments, [[maybe_unused]] void **extra),
              (config, function, arguments, extra)) {
    return config ? launch(function, *config, arguments) : CUDA_ERROR_INVALID_VALUE;
}

SIM_CU(cuFuncGetAttribute, (int *value, CUfunction_attribute attribute, CUfunction handle),
       (value, attribute, handle)) {
    const Function *function = code().functions.find(handle);
    return function ? attribute_of(function->needs, attribute, value) : CUDA_ERROR_INVALID_HANDLE;
}

// Says that it succeeded when the device has no room for the code, too (docs/results/driver.md).
SIM_CU(cuFuncLoad, (CUfunction handle), (handle)) {
    const Function *function = code().functions.find(handle);
    if (!function) return CUDA_ERROR_INVALID_HANDLE;
    load_code(*code().modules.find(function->module));
    return CUDA_SUCCESS;
}

SIM_CU(cuFuncIsLoaded, (CUfunctionLoadingState * state, CUfunction handle), (state, handle)) {
    const Function *function = code().functions.find(handle);
    if (!function) return CUDA_ERROR_INVALID_HANDLE;
    if (!state) return CUDA_ERROR_INVALID_VALUE;
    *state = code().modules.find(function->module)->has_code ? CU_FUNCTION_LOADING_STATE_LOADED
                                                             : CU_FUNCTION_LOADING_STATE_UNLOADED;
    return CUDA_SUCCESS;
}

}  // namespace curb::sim
