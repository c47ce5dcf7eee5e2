// Step "frameworks": memory that frameworks cache in the process, asked back through the interpreter they live in.
//
// From the worker only, under the GIL. Never within an intercepted call: a framework may hold its allocator's lock
// there and want the GIL next. Only what is imported already is asked. The code runs in a namespace of its own: in
// __main__ it would meet the program's variables.
//
// Before Python 3.14 a thread that asks for the GIL while the interpreter ends is ended by pthread_exit. That unwinds
// this thread, so nothing between here and the thread's start may be noexcept or catch everything.

#include <dlfcn.h>

#include "devices.hpp"
#include "real_libc.hpp"
#include "release/plan.hpp"

namespace curb::shim::release::step {
namespace {

struct PyObject;
constexpr int kFileInput = 257;  // Py_file_input, part of CPython's stable ABI

// The interpreter in this process, found among the global symbols: the python executable or its libpython.
struct Python {
    int (*initialized)() = nullptr;
    int (*finalizing)() = nullptr;  // Py_IsFinalizing since 3.13, _Py_IsFinalizing before
    int (*ensure)() = nullptr;
    void (*release)(int) = nullptr;
    PyObject *(*get_modules)() = nullptr;
    PyObject *(*get_builtins)() = nullptr;
    PyObject *(*new_dict)() = nullptr;
    int (*set_item)(PyObject *, const char *, PyObject *) = nullptr;
    PyObject *(*get_item)(PyObject *, const char *) = nullptr;
    PyObject *(*run)(const char *, int, PyObject *, PyObject *, void *) = nullptr;
    PyObject *(*from_string)(const char *) = nullptr;
    const char *(*as_utf8)(PyObject *) = nullptr;
    void (*decref)(PyObject *) = nullptr;
    void (*clear_error)() = nullptr;

    bool find() {
        const auto look = [](auto &slot, const char *name) {
            slot = reinterpret_cast<std::remove_reference_t<decltype(slot)>>(real::dlsym()(RTLD_DEFAULT, name));
            if (!slot) dlerror();
            return slot != nullptr;
        };
        return look(initialized, "Py_IsInitialized") &&
               (look(finalizing, "Py_IsFinalizing") || look(finalizing, "_Py_IsFinalizing")) &&
               look(ensure, "PyGILState_Ensure") && look(release, "PyGILState_Release") &&
               look(get_modules, "PyImport_GetModuleDict") && look(get_builtins, "PyEval_GetBuiltins") &&
               look(new_dict, "PyDict_New") && look(set_item, "PyDict_SetItemString") &&
               look(get_item, "PyDict_GetItemString") && look(run, "PyRun_StringFlags") &&
               look(from_string, "PyUnicode_FromString") && look(as_utf8, "PyUnicode_AsUTF8") &&
               look(decref, "Py_DecRef") && look(clear_error, "PyErr_Clear");
    }
};

// `modules` is sys.modules, `devices` the ordinals on which this process has a context, as text: making another device
// current would create one there. A module that is still being imported lacks what is asked of it: hence getattr.
constexpr const char *kAsk = R"python(
def _torch(torch):
    cuda = getattr(torch, 'cuda', None)
    if cuda is None or not cuda.is_initialized():
        return
    # cudaMallocAsync caches nothing beyond the driver's pool, which has a step of its own; and its empty_cache
    # breaks any graph capture in progress, in the relaxed mode too (PyTorch 2.11, H200: docs/results/driver.md).
    if cuda.get_allocator_backend() != 'cudaMallocAsync':
        cuda.empty_cache()

def _cupy(cupy):
    pool = cupy.get_default_memory_pool()
    for ordinal in devices.split():
        with cupy.cuda.Device(int(ordinal)):
            pool.free_all_blocks()

asked, failed = [], []
for _name, _give_back in (('torch', _torch), ('cupy', _cupy)):
    _module = modules.get(_name)
    if _module is None:
        continue
    try:
        _give_back(_module)
        asked.append(_name)
    except Exception as error:
        failed.append(f'{_name}: {type(error).__name__}: {error}')
report = '; '.join(failed) if failed else '' if asked else 'no framework loaded that can be asked'
)python";

std::string devices_with_contexts() {
    std::string ordinals;
    for (int ordinal = 0; ordinal < devices::count(); ++ordinal)
        if (devices::at(ordinal).contexts.load(std::memory_order_relaxed) > 0)
            ordinals += std::to_string(ordinal) + " ";
    return ordinals;
}

std::string ask(const Python &python) {
    PyObject *space = python.new_dict();
    if (!space) return "out of host memory";
    PyObject *ordinals = python.from_string(devices_with_contexts().c_str());
    python.set_item(space, "__builtins__", python.get_builtins());
    python.set_item(space, "modules", python.get_modules());
    if (ordinals) python.set_item(space, "devices", ordinals);
    std::string report = "Python refused to run the release";
    if (PyObject *result = python.run(kAsk, kFileInput, space, space, nullptr)) {
        python.decref(result);
        PyObject *said = python.get_item(space, "report");
        const char *text = said ? python.as_utf8(said) : nullptr;
        if (text) report = text;
    }
    python.clear_error();
    if (ordinals) python.decref(ordinals);
    python.decref(space);
    return report;
}

}  // namespace

std::string frameworks() {
    Python python;
    if (!python.find() || !python.initialized()) return "no Python";
    if (python.finalizing()) return "Python is ending";
    // A capture in progress elsewhere must survive what the frameworks free (cudaFree is allowed in this mode).
    const RelaxedCapture relaxed;
    const int state = python.ensure();
    std::string reason = ask(python);
    python.release(state);
    return reason;
}

}  // namespace curb::shim::release::step
