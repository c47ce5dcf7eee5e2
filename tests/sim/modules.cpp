#include "modules.hpp"

#include <unistd.h>

#include <set>
#include <string>

#include "driver.hpp"

namespace curb::sim {

namespace {

// What a loaded module's code takes. Assumed: the real figure depends on the code.
constexpr uint64_t kModuleBytes = 2 * kMiB;

struct Module {
    ~Module() { credit(device, Use::modules, kModuleBytes); }
    CUmodule handle = nullptr;
    CUcontext context = nullptr;
    int device = 0;
    CUlibrary library = nullptr;  // loaded for it
};

struct Library {
    CUlibrary handle = nullptr;
};

struct Kernel {
    CUkernel handle = nullptr;
    CUlibrary library = nullptr;
};

struct Function {
    CUfunction handle = nullptr;
    CUmodule module = nullptr;
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

CUresult load(CUmodule *module, CUlibrary library) {
    Context *context = nullptr;
    if (const CUresult error = current_context(&context)) return error;
    if (const CUresult error = charge(context->device, Use::modules, kModuleBytes)) return error;
    auto made = std::make_unique<Module>();
    made->context = context->handle;
    made->device = context->device;
    made->library = library;
    *module = code().modules.add(std::move(made))->handle;
    return CUDA_SUCCESS;
}

CUresult load_image(CUmodule *module, const void *image) {
    return module && image ? load(module, nullptr) : CUDA_ERROR_INVALID_VALUE;
}

// A library is loaded into a context when something of it is first wanted there.
CUresult module_of(CUlibrary library, CUmodule *module) {
    Context *context = nullptr;
    if (const CUresult error = current_context(&context)) return error;
    *module = nullptr;
    code().modules.each([&](const Module &one) {
        if (one.library == library && one.context == context->handle) *module = one.handle;
    });
    return *module ? CUDA_SUCCESS : load(module, library);
}

CUfunction function_in(CUmodule module) {
    auto made = std::make_unique<Function>();
    made->module = module;
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

}  // namespace

void unload_modules_of(CUcontext context) {
    unload_if([=](const Module &module) { return module.context == context; });
}

SIM_CU(cuModuleLoad, (CUmodule * module, const char *path), (module, path)) {
    if (!module || !path) return CUDA_ERROR_INVALID_VALUE;
    return ::access(path, R_OK) == 0 ? load(module, nullptr) : CUDA_ERROR_FILE_NOT_FOUND;
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

// Every name is found: what an image holds is not read.
SIM_CU(cuModuleGetFunction, (CUfunction * function, CUmodule module, const char *name), (function, module, name)) {
    if (!code().modules.find(module)) return CUDA_ERROR_INVALID_HANDLE;
    if (!function || !name || !*name) return CUDA_ERROR_INVALID_VALUE;
    *function = function_in(module);
    return CUDA_SUCCESS;
}

SIM_CU(cuModuleGetGlobal_v2,
       ([[maybe_unused]] CUdeviceptr * start, [[maybe_unused]] size_t *bytes, CUmodule module, const char *name),
       (start, bytes, module, name)) {
    if (!code().modules.find(module)) return CUDA_ERROR_INVALID_HANDLE;
    return name ? CUDA_ERROR_NOT_FOUND : CUDA_ERROR_INVALID_VALUE;
}

SIM_CU(cuLibraryLoadData,
       (CUlibrary * library, const void *image, [[maybe_unused]] CUjit_option *jit_options,
        [[maybe_unused]] void **jit_values, [[maybe_unused]] unsigned jit_count,
        [[maybe_unused]] CUlibraryOption *options, [[maybe_unused]] void **values, [[maybe_unused]] unsigned count),
       (library, image, jit_options, jit_values, jit_count, options, values, count)) {
    if (!library || !image) return CUDA_ERROR_INVALID_VALUE;
    *library = code().libraries.add(std::make_unique<Library>())->handle;
    return CUDA_SUCCESS;
}

SIM_CU(cuLibraryUnload, (CUlibrary handle), (handle)) {
    if (!code().libraries.remove(handle)) return CUDA_ERROR_INVALID_HANDLE;
    code().kernels.remove_if([=](const Kernel &kernel) { return kernel.library == handle; });
    unload_if([=](const Module &module) { return module.library == handle; });
    return CUDA_SUCCESS;
}

SIM_CU(cuLibraryGetKernel, (CUkernel * kernel, CUlibrary library, const char *name), (kernel, library, name)) {
    if (!code().libraries.find(library)) return CUDA_ERROR_INVALID_HANDLE;
    if (!kernel || !name || !*name) return CUDA_ERROR_INVALID_VALUE;
    auto made = std::make_unique<Kernel>();
    made->library = library;
    *kernel = code().kernels.add(std::move(made))->handle;
    return CUDA_SUCCESS;
}

SIM_CU(cuLibraryGetModule, (CUmodule * module, CUlibrary library), (module, library)) {
    if (!code().libraries.find(library)) return CUDA_ERROR_INVALID_HANDLE;
    return module ? module_of(library, module) : CUDA_ERROR_INVALID_VALUE;
}

SIM_CU(cuKernelGetFunction, (CUfunction * function, CUkernel handle), (function, handle)) {
    const Kernel *kernel = code().kernels.find(handle);
    if (!kernel) return CUDA_ERROR_INVALID_HANDLE;
    if (!function) return CUDA_ERROR_INVALID_VALUE;
    CUmodule module = nullptr;
    if (const CUresult error = module_of(kernel->library, &module)) return error;
    *function = function_in(module);
    return CUDA_SUCCESS;
}

// A kernel's handle may stand in for a function's (cuda.h, cuLaunchKernel). The kernel itself does nothing.
SIM_CU_STREAM(cuLaunchKernel,
              (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
               unsigned block_y, unsigned block_z, [[maybe_unused]] unsigned shared, CUstream handle,
               [[maybe_unused]] void **arguments, [[maybe_unused]] void **extra),
              (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, handle, arguments, extra)) {
    if (!code().functions.find(function) && !code().kernels.find(reinterpret_cast<CUkernel>(function)))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!grid_x || !grid_y || !grid_z || !block_x || !block_y || !block_z) return CUDA_ERROR_INVALID_VALUE;
    Stream *stream = nullptr;
    if (const CUresult error = find_stream(handle, &stream)) return error;
    return submit(*stream, CU_GRAPH_NODE_TYPE_KERNEL, [] {});
}

SIM_CU(cuFuncGetAttribute, (int *value, CUfunction_attribute attribute, CUfunction function),
       (value, attribute, function)) {
    if (!value) return CUDA_ERROR_INVALID_VALUE;
    if (!code().functions.find(function)) return CUDA_ERROR_INVALID_HANDLE;
    *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0;
    return CUDA_SUCCESS;
}

}  // namespace curb::sim
