// Kernels: curb charges the local memory of their threads and measures their code.
//
// A kernel that needs more local memory than the context's stack limit raises that limit at its launch, for every
// thread that can be resident: 64 KiB a thread are 16 GiB on an H200. The driver reports a kernel's need in advance.

#include <array>
#include <cstdlib>

#include "accounting/reconcile.hpp"
#include "admission/admission.hpp"
#include "admission/reports.hpp"
#include "cache/cache.hpp"
#include "contexts/contexts.hpp"
#include "device/activity.hpp"
#include "hooks/kernels.hpp"
#include "limits/in_force.hpp"
#include "limits/limits.hpp"
#include "policy/values/granule.hpp"
#include "trace/trace.hpp"

namespace curb::shim {
namespace {

// A lock-free set of handles. A handle that finds no slot stays unknown, which only costs time at each call.
class Handles {
  public:
    [[nodiscard]] bool contains(std::uintptr_t key) const noexcept {
        for (std::size_t probe = 0; probe < kProbes; ++probe) {
            const std::uintptr_t found = keys_[place(key, probe)];
            if (found == 0) return false;
            if (found == key) return true;
        }
        return false;
    }
    void add(std::uintptr_t key) noexcept {
        for (std::size_t probe = 0; probe < kProbes; ++probe) {
            std::uintptr_t found = 0;
            auto &slot = keys_[place(key, probe)];
            if (slot.compare_exchange_strong(found, key) || found == key) return;
        }
    }
    void clear() noexcept {
        // The default order would take 0.1 ms for all, and each module that is unloaded clears them.
        for (auto &key : keys_) key.store(0, std::memory_order_release);
    }

  private:
    static constexpr std::size_t kPlaces = std::size_t{1} << 13, kProbes = 8;

    static std::size_t place(std::uintptr_t key, std::size_t probe) noexcept {
        return ((key * 0x9E3779B97F4A7C15ULL >> 51) + probe) % kPlaces;
    }

    std::array<std::atomic<std::uintptr_t>, kPlaces> keys_{};
};
constinit struct {
    // Kernels whose next launch needs no more local memory than their context has.
    Handles no_stack_growth;
    // Kernels, functions and libraries whose code the driver has already loaded. cuDNN asks for such code 8 times in
    // each training step; measuring the device each time, near the cap, cost TensorFlow 13 % of its steps (H200).
    Handles code_loaded;
} known_kernels;

// A kernel's handle is valid in every context, so the key includes the context if there are several.
std::uintptr_t key_of(const void *handle) noexcept {
    const auto key = reinterpret_cast<std::uintptr_t>(handle);
    return devices::contexts() > 1 ? key ^ reinterpret_cast<std::uintptr_t>(current_context()) << 1 : key;
}

Bytes stack_limit() noexcept {
    std::size_t limit = 0;
    return ask_twice<&Driver::cuCtxGetLimit>(&limit, CU_LIMIT_STACK_SIZE) == CUDA_SUCCESS ? limit : 0;
}

// Returns a kernel's local memory per thread. 0 if it needs none or the driver fails.
Bytes local_bytes(CUfunction function, const Device &device) noexcept {
    int bytes = 0;
    // The handle may be a function's, or a library kernel's.
    const auto ask = [&] {
        return driver().cuFuncGetAttribute(&bytes, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, function) == CUDA_SUCCESS
                   ? CUDA_SUCCESS
                   : driver().cuKernelGetAttribute(&bytes, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES,
                                                   reinterpret_cast<CUkernel>(function), device.ordinal);
    };
    return ask_twice(ask) == CUDA_SUCCESS ? static_cast<Bytes>(bytes) : 0;
}

void trace_stack(const Device &device, CUcontext context, const contexts::StackChange &change) noexcept {
    const auto handle = reinterpret_cast<std::uint64_t>(context);
    const auto bytes = static_cast<Bytes>(std::abs(change.stack));
    if (change.stack > 0) trace::allocated(device, Kind::stack, handle, bytes, bytes);
    if (change.stack < 0) trace::freed(device, Kind::stack, handle, bytes, bytes, trace::moment());
    trace::books(device, Kind::contexts, change.context);
}

// Charges `call`, which changes the context's stack from `now` to `limit` bytes per thread.
template <class Call>
CUresult change_stack(Device &device, Bytes limit, Bytes now, Call call) {
    const CUcontext context = current_context();
    if (const Bytes growth = contexts::stack_growth(context, limit, now); growth != 0) {
        const Request request(device, Kind::stack, growth, growth, caller_match::Way::none, Reuse::none());
        return charged(request, call, [&](Charge &charge) {
            const contexts::StackChange change = contexts::stack_set(context, limit);
            charge.keep(0);  // stack_set() has charged it; credit the reservation
            trace_stack(device, context, change);
            return CUDA_SUCCESS;
        });
    }
    const Ledger::Operation operation(&device.ledger);
    const CUresult result = call();
    if (result == CUDA_SUCCESS) trace_stack(device, context, contexts::stack_set(context, limit));
    return result;
}

// Calls the driver, which may take an unknown amount of memory for code. If other processes fill the device, waits as
// long as an allocation would (growth.wait).
template <class Call>
CUresult beside_others(Call call) {
    CUresult result = call();
    Device *device = result == CUDA_ERROR_OUT_OF_MEMORY ? devices::current() : nullptr;
    if (!device || limits::in_force(*device)->terms.growth.wait.count() == 0) return result;
    wait_queue::Wait wait;
    if (admission::wait_for_device(*device, Kind::overhead, policy::kGranule, wait))
        result = admission::until_served(*device, Kind::overhead, policy::kGranule, wait,
                                         [&] { return admission::unless_full(call()); });
    if (result == CUDA_SUCCESS) admission::granted(*device, Kind::overhead, policy::kGranule, wait);
    return result;
}

// Returns the device of the current context, if curb charges the stacks and measures the code of its kernels. Out of
// line, so that launch() keeps its arguments in registers: inline, it costs 95 instructions instead of 84.
[[gnu::noinline]] Device *counted_device() noexcept {
    Device *device = in_force::limited() || trace::on() ? devices::current() : nullptr;
    return device && limits::counts_all(*device) ? device : nullptr;
}

// A kernel's first launch, or one that may raise the stack limit again.
template <class Call>
CUresult first_launch(CUfunction function, std::uintptr_t key, Call call) {
    Device *device = counted_device();
    if (!device) return beside_others(call);
    if (admission::refuse_code_load(*device, policy::kFirstKernels)) return CUDA_ERROR_OUT_OF_MEMORY;
    const Bytes limit = stack_limit(), local = local_bytes(function, *device);
    const CUresult result =
        limit != 0 && local > limit ? change_stack(*device, local, limit, call) : beside_others(call);
    if (result == CUDA_SUCCESS) known_kernels.no_stack_growth.add(key);
    driver_may_have_taken(*device);
    return result;
}

template <class Call>
CUresult launch(CUfunction function, Call call) {
    activity::note();
    const std::uintptr_t key = key_of(function);
    const CUresult result = cache::with_room(
        [&] { return known_kernels.no_stack_growth.contains(key) ? call() : first_launch(function, key, call); });
    cache::note_work();
    return result;
}

CUresult set_stack_limit(Device &device, std::size_t limit) {
    const Bytes before = stack_limit();
    const CUresult result =
        change_stack(device, limit, before, to_driver<&Driver::cuCtxSetLimit>(CU_LIMIT_STACK_SIZE, limit));
    if (result == CUDA_SUCCESS && limit < before) kernels::forget();
    driver_may_have_taken(device);
    return result;
}

// The driver allocates the heap at the launch of a kernel that uses it. curb refuses a heap now that would not fit
// then, and keeps the bytes free for it.
CUresult set_heap_limit(Device &device, std::size_t limit) {
    constexpr Bytes kByDefault = 8 * policy::MiB;
    const auto call = to_driver<&Driver::cuCtxSetLimit>(CU_LIMIT_MALLOC_HEAP_SIZE, limit);
    const Bytes more = limit > kByDefault ? limit - kByDefault : 0, kept = device.contexts.heap;
    const auto keep_room = [&] {
        device.contexts.heap = more;
        trace::heap(device, more);
    };
    if (more > kept) {
        const Request request(device, Kind::stack, more - kept, more - kept, caller_match::Way::none, Reuse::none());
        return charged(request, call, [&](Charge &) {
            keep_room();
            return CUDA_SUCCESS;
        });
    }
    const CUresult result = call();
    if (result == CUDA_SUCCESS) keep_room();
    return result;
}

// Calls the driver. If the device is full, releases what this process does not use and calls once more.
template <class Call>
CUresult with_released(Device &device, Call call) {
    const CUresult result = call();
    return result == CUDA_ERROR_OUT_OF_MEMORY && admission::release_on_the_spot(device) ? call() : result;
}

// Unloads a module again if its globals or code put the process above the cap: nothing of it has been used yet.
template <class Call>
CUresult load(CUmodule *module, Call call) {
    Device *device = devices::current();
    const auto cap = device ? limits::cap(*device) : std::nullopt;
    if (!cap) {
        const CUresult result = beside_others([&] { return cache::with_room(call); });
        if (device && result == CUDA_SUCCESS) driver_may_have_taken(*device);
        return result;
    }
    reconcile(*device);
    const Bytes before = device->ledger.overhead();
    const CUresult result = beside_others([&] { return with_released(*device, call); });
    if (result != CUDA_SUCCESS) return result;
    reconcile(*device);
    const auto exceeds_cap = [&] { return device->ledger.held() > *cap && device->ledger.overhead() > before; };
    if (exceeds_cap() && admission::release_on_the_spot(*device)) reconcile(*device);
    if (!exceeds_cap()) return CUDA_SUCCESS;
    const Bytes bytes = device->ledger.overhead() - before, held = device->ledger.held();
    // The error may be of earlier work, and the module unloaded all the same. Measure, so as not to unload it twice.
    const auto unload = [&] {
        if (driver().cuModuleUnload(*module) == CUDA_SUCCESS) return true;
        reconcile(*device);
        return !exceeds_cap();
    };
    // If it stays loaded, give it to the program, which alone can unload it; it counts against the next request.
    if (!unload() && !unload()) return CUDA_SUCCESS;
    *module = nullptr;
    const auto gpu = limits::in_force(*device);
    const policy::Limit why = gpu->terms.cap == cap ? policy::Limit::cap : policy::Limit::job;
    reports::refusal(*device, *gpu, bytes, {Kind::overhead, why, held});
    reconcile(*device);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

// Calls the driver, which loads the code of `handle` (nullptr: unknown) at the first such call. Its size is unknown and
// it cannot be unloaded again, so code may exceed the cap; but curb refuses more code once the process holds `by` bytes
// above it.
template <class Call>
CUresult load_lazily(const void *handle, Bytes by, Call call) {
    const std::uintptr_t key = handle ? key_of(handle) : 0;
    if (known_kernels.code_loaded.contains(key)) return call();
    Device *device = devices::current();
    if (!device) return call();
    if (admission::refuse_code_load(*device, by)) return CUDA_ERROR_OUT_OF_MEMORY;
    const CUresult result = beside_others([&] { return with_released(*device, call); });
    if (result == CUDA_SUCCESS) known_kernels.code_loaded.add(key);
    driver_may_have_taken(*device);
    return result;
}

// Globals can be of any size, so measure them before the next request.
template <class Call>
CUresult load_globals(CUlibrary library, Call call) {
    const bool is_loaded = known_kernels.code_loaded.contains(key_of(library));
    const CUresult result = load_lazily(library, 0, call);
    Device *device = is_loaded ? nullptr : devices::current();
    if (device && limits::cap(*device)) reconcile(*device);
    return result;
}

// A running program needs its next kernel, and one is small. So refuse it only once the process is above the cap by
// more than kFirstKernels.
template <class Call>
CUresult load_kernel(const void *handle, Call call) {
    return load_lazily(handle, policy::kFirstKernels, call);
}

template <class Call>
CUresult unload(Call call) {
    kernels::forget();
    const CUresult result = call();
    if (Device *device = devices::current()) devices::measure_returned_soon(*device);
    return result;
}

}  // namespace

void kernels::forget() noexcept {
    known_kernels.no_stack_growth.clear();
    known_kernels.code_loaded.clear();
}

}  // namespace curb::shim

using namespace curb::shim;

CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
    Device *device = devices::current();
    if (device && limit == CU_LIMIT_STACK_SIZE) return set_stack_limit(*device, value);
    if (device && limit == CU_LIMIT_MALLOC_HEAP_SIZE) return set_heap_limit(*device, value);
    return driver().cuCtxSetLimit(limit, value);
}

#define CURB_LAUNCH(form)                                                                                             \
    CUresult cuLaunchKernel##form(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,             \
                                  unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,              \
                                  CUstream stream, void **arguments, void **extra) {                                  \
        return launch(function, [=] {                                                                                 \
            return driver().cuLaunchKernel##form(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, \
                                                 stream, arguments, extra);                                           \
        });                                                                                                           \
    }                                                                                                                 \
    CUresult cuLaunchKernelEx##form(const CUlaunchConfig *configuration, CUfunction function, void **arguments,       \
                                    void **extra) {                                                                   \
        return launch(function,                                                                                       \
                      [=] { return driver().cuLaunchKernelEx##form(configuration, function, arguments, extra); });    \
    }                                                                                                                 \
    CUresult cuLaunchCooperativeKernel##form(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,  \
                                             unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,   \
                                             CUstream stream, void **arguments) {                                     \
        return launch(function, [=] {                                                                                 \
            return driver().cuLaunchCooperativeKernel##form(function, grid_x, grid_y, grid_z, block_x, block_y,       \
                                                            block_z, shared, stream, arguments);                      \
        });                                                                                                           \
    }
CURB_LAUNCH()
CURB_LAUNCH(_ptsz)
#undef CURB_LAUNCH

CUresult cuModuleLoad(CUmodule *module, const char *file) {
    return load(module, to_driver<&Driver::cuModuleLoad>(module, file));
}
CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    return load(module, to_driver<&Driver::cuModuleLoadData>(module, image));
}
CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count, CUjit_option *options, void **values) {
    return load(module, to_driver<&Driver::cuModuleLoadDataEx>(module, image, count, options, values));
}
CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image) {
    return load(module, to_driver<&Driver::cuModuleLoadFatBinary>(module, image));
}
CUresult cuModuleUnload(CUmodule module) { return unload(to_driver<&Driver::cuModuleUnload>(module)); }
CUresult cuLibraryUnload(CUlibrary library) { return unload(to_driver<&Driver::cuLibraryUnload>(library)); }
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    return load_kernel(nullptr, to_driver<&Driver::cuModuleGetFunction>(function, module, name));
}
CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library) {
    return load_globals(library, to_driver<&Driver::cuLibraryGetModule>(module, library));
}
CUresult cuLibraryGetGlobal(CUdeviceptr *start, size_t *bytes, CUlibrary library, const char *name) {
    return load_globals(library, to_driver<&Driver::cuLibraryGetGlobal>(start, bytes, library, name));
}
CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel) {
    return load_kernel(kernel, to_driver<&Driver::cuKernelGetFunction>(function, kernel));
}
CUresult cuFuncLoad(CUfunction function) { return load_kernel(function, to_driver<&Driver::cuFuncLoad>(function)); }
