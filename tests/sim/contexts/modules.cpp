#include "modules.hpp"

#include <cstring>
#include <functional>
#include <set>
#include <string>

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

    static constexpr CUresult kUnknown = CUDA_ERROR_INVALID_HANDLE;
    CUmodule handle = nullptr;
    CUcontext context;
    int device;
    Image image;
    CUlibrary library = nullptr;  // that it was loaded for
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
    static constexpr CUresult kUnknown = CUDA_ERROR_INVALID_HANDLE;
    CUlibrary handle = nullptr;
    Image image;
};

struct Kernel {
    static constexpr CUresult kUnknown = CUDA_ERROR_INVALID_HANDLE;
    CUkernel handle = nullptr;
    CUlibrary library = nullptr;
    KernelNeeds needs;
};

struct Function {
    static constexpr CUresult kUnknown = CUDA_ERROR_INVALID_HANDLE;
    CUfunction handle = nullptr;
    CUmodule module = nullptr;
    std::string name;
    KernelNeeds needs;
};

// The first look-up of a function loads its module's code. If the device has no room, the look-up succeeds and the
// launch fails (docs/results/driver.md).
void load_code(Module &module) {
    if (module.has_code) return;
    charge(module.device, Use::modules, module.image.code);
    module.taken += module.image.code;
    module.has_code = true;
}

// Charges the memory that all modules of a kind share in a context. It stays when they are gone.
void take_once(Context &context, uint64_t bytes) {
    if (bytes <= context.code_kept) return;
    charge(context.device, Use::modules, bytes - context.code_kept);
    context.code_kept = bytes;
}

void take_global(Module &module) {
    const uint64_t size = round_up(module.image.global, kGranule);
    if (!size) return;
    charge(module.device, Use::modules, size);
    module.taken += size;
    module.global = driver().addresses.take(size, kGranule);
    if (!module.global) throw CUDA_ERROR_OUT_OF_MEMORY;
    add_allocation({.kind = Allocation::Kind::global,
                    .start = module.global,
                    .bytes = module.image.global,
                    .device = module.device,
                    .context = module.context});
}

Module *load(const Image &image, CUlibrary library = nullptr) {
    Context *context = current_context();
    auto made = std::make_unique<Module>(image, *context);
    made->library = library;
    charge(made->device, Use::modules, image.data);
    made->taken = image.data;
    take_global(*made);
    if (environment_is("CUDA_MODULE_LOADING", "EAGER")) load_code(*made);
    take_once(*context, image.once);
    return all<Module>().add(std::move(made));
}

void load_image(CUmodule *module, const void *image) {
    if (!module || !image) throw CUDA_ERROR_INVALID_VALUE;
    *module = load(read_image(image))->handle;
}

// Returns the library's module in the current context. The first use there loads it.
Module *module_of(CUlibrary handle) {
    const Context *context = current_context();
    Module *module = nullptr;
    all<Module>().each([&](Module &one) {
        if (one.library == handle && one.context == context->handle) module = &one;
    });
    return module ? module : load(all<Library>().at(handle)->image, handle);
}

CUfunction function_in(Module &module, const KernelNeeds &needs, const std::string &name = "") {
    result_of([&] { load_code(module); });
    auto made = std::make_unique<Function>();
    made->module = module.handle;
    made->name = name;
    made->needs = needs;
    return all<Function>().add(std::move(made))->handle;
}

template <class Predicate>
void unload_if(Predicate predicate) {
    std::set<CUmodule> gone;
    all<Module>().each([&](const Module &module) {
        if (predicate(module)) gone.insert(module.handle);
    });
    all<Function>().remove_if([&](const Function &function) { return gone.count(function.module) != 0; });
    all<Module>().remove_if([&](const Module &module) { return gone.count(module.handle) != 0; });
}

// A kernel's handle may stand in for a function's (cuda.h, cuLaunchKernel).
bool is_launchable(CUfunction function) {
    return all<Function>().find(function) || all<Kernel>().find(reinterpret_cast<CUkernel>(function));
}

// Charges the memory that a launch needs beyond its context's: the kernel's code, local memory beyond the stack of each
// resident thread, and the heap.
void prepare(CUfunction handle, CUcontext context_handle) {
    Context *context = find_context(context_handle);
    const Function *function = all<Function>().find(handle);
    const Kernel *kernel = all<Kernel>().find(reinterpret_cast<CUkernel>(handle));
    if (!context || (!function && !kernel)) throw CUDA_ERROR_INVALID_HANDLE;
    Module *module = function ? all<Module>().find(function->module) : nullptr;
    if (!module) module = module_of(kernel->library);
    load_code(*module);
    const KernelNeeds &needs = function ? function->needs : kernel->needs;
    if (needs.local > context->stack_limit) context->set_stack(needs.local);
    if (needs.mallocs) context->take_heap();
}

const KernelNeeds &needs_of(CUfunction handle) {
    const Function *function = all<Function>().find(handle);
    return function ? function->needs : all<Kernel>().find(reinterpret_cast<CUkernel>(handle))->needs;
}

// `arguments`: each points to the value of a parameter.
void run(const KernelNeeds &needs, const Stream &stream, void **arguments) {
    std::vector<CUdeviceptr> addresses;
    for (uint64_t i = 0; arguments && i < needs.blocks; ++i)
        addresses.push_back(*static_cast<const CUdeviceptr *>(arguments[i]));
    begin_kernel(stream, std::chrono::microseconds(needs.us), addresses);
}

// The one kernel that does something here: curb's, which finds the pages of zeros before it moves memory.
std::function<void(Stream &)> work_of(CUfunction handle, void **arguments) {
    const Function *function = all<Function>().find(handle);
    if (!function || function->name != "curb_find_zeros") return [](Stream &) {};
    const auto memory = *static_cast<const CUdeviceptr *>(arguments[0]);
    const auto pages = *static_cast<const uint64_t *>(arguments[1]);
    const auto found = *static_cast<const CUdeviceptr *>(arguments[2]);
    return [=](Stream &) {
        constexpr uint64_t kPage = 64 << 10;
        const CUdeviceptr end = memory + pages * kPage;
        CUdeviceptr contents = memory;
        for (uint64_t page = 0; page < pages; ++page) {
            const CUdeviceptr at = memory + page * kPage;
            if (contents <= at) contents = next_contents(at, end);
            const char *first = static_cast<const char *>(host(at));
            if (at + kPage <= contents || (*first == 0 && std::memcmp(first, first + 1, kPage - 1) == 0))
                static_cast<char *>(host(found))[page] = 1;
        }
    };
}

void launch(CUfunction function, const CUlaunchConfig &config, void **arguments) {
    if (!is_launchable(function)) throw CUDA_ERROR_INVALID_HANDLE;
    if (!config.gridDimX || !config.gridDimY || !config.gridDimZ || !config.blockDimX || !config.blockDimY ||
        !config.blockDimZ)
        throw CUDA_ERROR_INVALID_VALUE;
    Stream *stream = find_stream(config.hStream);
    const CUcontext context = stream->context;
    submit(*stream, CU_GRAPH_NODE_TYPE_KERNEL, work_of(function, arguments), [=] { prepare(function, context); });
    if (const KernelNeeds &needs = needs_of(function); !stream->capture && needs.us) run(needs, *stream, arguments);
}

void attribute_of(const KernelNeeds &needs, CUfunction_attribute attribute, int *value) {
    if (!value) throw CUDA_ERROR_INVALID_VALUE;
    switch (attribute) {
        case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = 1024; break;
        case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES: *value = static_cast<int>(needs.local); break;
        default: *value = 0; break;  // attributes that are not simulated are 0
    }
}

const KernelNeeds &needs_in(const Image &image, const char *name) {
    const KernelNeeds *needs = image.find(name);
    return needs ? *needs : throw CUDA_ERROR_NOT_FOUND;
}

Image image_in_file(const char *path) {
    Image image;
    return read_image_file(path, &image) ? image : throw CUDA_ERROR_FILE_NOT_FOUND;
}

// A module has one variable, under any name.
void global_of(const Module &module, CUdeviceptr *start, size_t *bytes) {
    if (!module.global) throw CUDA_ERROR_NOT_FOUND;
    if (start) *start = module.global;
    if (bytes) *bytes = module.image.global;
}

}  // namespace

void unload_modules_of(CUcontext context) {
    unload_if([=](const Module &module) { return module.context == context; });
}

GraphNode &add_kernel_node(Graph &graph, const CUDA_KERNEL_NODE_PARAMS &params) {
    const CUfunction function = params.func ? params.func : reinterpret_cast<CUfunction>(params.kern);
    if (!is_launchable(function)) throw CUDA_ERROR_INVALID_VALUE;
    Context *context = params.ctx ? find_context(params.ctx) : nullptr;
    if (!context) context = current_context();
    GraphNode &node = add_node(graph, CU_GRAPH_NODE_TYPE_KERNEL);
    node.prepare = [=, handle = context->handle] { prepare(function, handle); };
    return node;
}

SIM_CU(2000, cuModuleLoad, (CUmodule * module, const char *path), (module, path)) {
    if (!module || !path) throw CUDA_ERROR_INVALID_VALUE;
    *module = load(image_in_file(path))->handle;
}

SIM_CU(2000, cuModuleLoadData, (CUmodule * module, const void *image), (module, image)) { load_image(module, image); }
SIM_CU(2000, cuModuleLoadFatBinary, (CUmodule * module, const void *image), (module, image)) {
    load_image(module, image);
}
SIM_CU(2010, cuModuleLoadDataEx,
       (CUmodule * module, const void *image, unsigned count, CUjit_option *options, void **values),
       (module, image, count, options, values)) {
    load_image(module, image);
}

SIM_CU(2000, cuModuleUnload, (CUmodule handle), (handle)) {
    all<Module>().at(handle);
    unload_if([=](const Module &module) { return module.handle == handle; });
}

SIM_CU(2000, cuModuleGetFunction, (CUfunction * function, CUmodule module, const char *name),
       (function, module, name)) {
    Module *found = all<Module>().at(module);
    if (!function || !name || !*name) throw CUDA_ERROR_INVALID_VALUE;
    *function = function_in(*found, needs_in(found->image, name), name);
}

SIM_CU(3020, cuModuleGetGlobal_v2, (CUdeviceptr * start, size_t *bytes, CUmodule handle, const char *name),
       (start, bytes, handle, name)) {
    const Module *module = all<Module>().at(handle);
    if (!name) throw CUDA_ERROR_INVALID_VALUE;
    global_of(*module, start, bytes);
}

static void add_library(CUlibrary *library, const Image &image) {
    auto made = std::make_unique<Library>();
    made->image = image;
    *library = all<Library>().add(std::move(made))->handle;
}

SIM_CU(12000, cuLibraryLoadData,
       (CUlibrary * library, const void *image, CUjit_option *jit_options, void **jit_values, unsigned jit_count,
        CUlibraryOption *options, void **values, unsigned count),
       (library, image, jit_options, jit_values, jit_count, options, values, count)) {
    if (!library || !image) throw CUDA_ERROR_INVALID_VALUE;
    add_library(library, read_image(image));
}

SIM_CU(12000, cuLibraryLoadFromFile,
       (CUlibrary * library, const char *path, CUjit_option *jit_options, void **jit_values, unsigned jit_count,
        CUlibraryOption *options, void **values, unsigned count),
       (library, path, jit_options, jit_values, jit_count, options, values, count)) {
    if (!library || !path) throw CUDA_ERROR_INVALID_VALUE;
    add_library(library, image_in_file(path));
}

SIM_CU(12000, cuLibraryUnload, (CUlibrary handle), (handle)) {
    all<Library>().release(handle);
    all<Kernel>().remove_if([=](const Kernel &kernel) { return kernel.library == handle; });
    unload_if([=](const Module &module) { return module.library == handle; });
}

SIM_CU(12000, cuLibraryGetKernel, (CUkernel * kernel, CUlibrary handle, const char *name), (kernel, handle, name)) {
    const Library *library = all<Library>().at(handle);
    if (!kernel || !name || !*name) throw CUDA_ERROR_INVALID_VALUE;
    auto made = std::make_unique<Kernel>();
    made->library = handle;
    made->needs = needs_in(library->image, name);
    *kernel = all<Kernel>().add(std::move(made))->handle;
}

SIM_CU(12000, cuLibraryGetModule, (CUmodule * module, CUlibrary library), (module, library)) {
    all<Library>().at(library);
    if (!module) throw CUDA_ERROR_INVALID_VALUE;
    *module = module_of(library)->handle;
}

SIM_CU(12000, cuLibraryGetGlobal, (CUdeviceptr * start, size_t *bytes, CUlibrary library, const char *name),
       (start, bytes, library, name)) {
    const Library *found = all<Library>().at(library);
    if (!name) throw CUDA_ERROR_INVALID_VALUE;
    if (!found->image.global) throw CUDA_ERROR_NOT_FOUND;
    global_of(*module_of(library), start, bytes);
}

SIM_CU(12000, cuKernelGetFunction, (CUfunction * function, CUkernel handle), (function, handle)) {
    const Kernel *kernel = all<Kernel>().at(handle);
    if (!function) throw CUDA_ERROR_INVALID_VALUE;
    *function = function_in(*module_of(kernel->library), kernel->needs);
}

SIM_CU(12000, cuKernelGetAttribute, (int *value, CUfunction_attribute attribute, CUkernel handle, CUdevice device),
       (value, attribute, handle, device)) {
    find_device(device);
    attribute_of(all<Kernel>().at(handle)->needs, attribute, value);
}

SIM_CU_STREAM(4000, cuLaunchKernel,
              (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
               unsigned block_y, unsigned block_z, unsigned shared, CUstream stream, void **arguments, void **extra),
              (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, arguments, extra)) {
    launch(function, {grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, nullptr, 0}, arguments);
}

SIM_CU_STREAM(9000, cuLaunchCooperativeKernel,
              (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
               unsigned block_y, unsigned block_z, unsigned shared, CUstream stream, void **arguments),
              (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, arguments)) {
    launch(function, {grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, nullptr, 0}, arguments);
}

SIM_CU_STREAM(11060, cuLaunchKernelEx,
              (const CUlaunchConfig *config, CUfunction function, void **arguments, void **extra),
              (config, function, arguments, extra)) {
    if (!config) throw CUDA_ERROR_INVALID_VALUE;
    launch(function, *config, arguments);
}

SIM_CU(2020, cuFuncGetAttribute, (int *value, CUfunction_attribute attribute, CUfunction handle),
       (value, attribute, handle)) {
    attribute_of(all<Function>().at(handle)->needs, attribute, value);
}

// Succeeds even if the device has no room for the code (docs/results/driver.md).
SIM_CU(12040, cuFuncLoad, (CUfunction handle), (handle)) {
    const Function *function = all<Function>().at(handle);
    result_of([=] { load_code(*all<Module>().at(function->module)); });
}

SIM_CU(12040, cuFuncIsLoaded, (CUfunctionLoadingState * state, CUfunction handle), (state, handle)) {
    const Function *function = all<Function>().at(handle);
    if (!state) throw CUDA_ERROR_INVALID_VALUE;
    *state = all<Module>().find(function->module)->has_code ? CU_FUNCTION_LOADING_STATE_LOADED
                                                            : CU_FUNCTION_LOADING_STATE_UNLOADED;
}

}  // namespace curb::sim
