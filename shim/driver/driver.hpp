// The real driver: one typed slot for each row of entry_points.def, filled from the libcuda that the program loaded.
// A call before libcuda is loaded goes to the program's own stub of the function, which loads libcuda (stubs.hpp).
//
// Thread-safe. driver() costs one atomic load once the slots are filled, and waits while the gate is closed.
#pragma once

#include <atomic>
#include <cstdint>

#include "abi/cuda_abi.h"
#include "abi/nvml_abi.h"
#include "driver/gate.hpp"
#include "driver/stubs.hpp"

namespace curb::shim {

namespace detail {
// Returns the function to call for an empty slot: the program's own stub if it has one. Otherwise loads libcuda and
// returns the slot's new address. Null if libcuda lacks the function.
void *fallback_for(const void *slot) noexcept;
// Fills the slots if libcuda is loaded. False if it is not.
bool find_driver() noexcept;
// Opens libcuda as a stub would.
void load_driver() noexcept;
}  // namespace detail

// A driver function. A call returns CUDA_ERROR_NOT_INITIALIZED if the loaded libcuda lacks it, and CUDA_ERROR_NO_DEVICE
// if there is no libcuda, as on a machine without a GPU.
template <class F>
class Slot;
template <class... Args>
class Slot<CUresult(Args...)> {
  public:
    CUresult operator()(Args... args) const {
        auto *function = address.load(std::memory_order_relaxed);
        return function ? function(args...) : call_fallback(args..., *this);
    }

    std::atomic<CUresult (*)(Args...)> address{nullptr};

  private:
    // `slot` is the last parameter, so that the arguments stay in their registers.
    [[gnu::cold, gnu::noinline]] static CUresult call_fallback(Args... args, const Slot &slot) {
        const stubs::Call call(&slot);
        auto *function =
            reinterpret_cast<CUresult (*)(Args...)>(call.is_nested() ? nullptr : detail::fallback_for(&slot));
        if (function) return function(args...);
        return detail::find_driver() ? CUDA_ERROR_NOT_INITIALIZED : CUDA_ERROR_NO_DEVICE;
    }
};

// A driver function whose calls are always counted (gate.hpp).
template <class F>
class CountedSlot;
template <class... Args>
class CountedSlot<CUresult(Args...)> : public Slot<CUresult(Args...)> {
  public:
    CUresult operator()(Args... args) const {
        const gate::Crossing crossing(this);
        return crossing.passes() ? uncounted(args...) : CUDA_ERROR_DEINITIALIZED;
    }
    // Calls it whether the gate is open or closed: for moving the process.
    CUresult uncounted(Args... args) const { return Slot<CUresult(Args...)>::operator()(args...); }
};

// Functions that curb exports come first, in the order of their rows, so a slot's position gives its row.
struct Driver {
#define CURB_WRAP(symbol, base, since, stream, rule) Slot<decltype(::symbol)> symbol;
#define CURB_COUNT(symbol, base, since, stream, rule) CountedSlot<decltype(::symbol)> symbol;
#include "driver/tables/entry_points.def"
#define CURB_CALL(symbol) Slot<decltype(::symbol)> symbol;
#include "driver/tables/entry_points.def"
};

namespace detail {
extern constinit Driver the_driver;
// The same functions by thunks, which count the calls of a program that takes turns. Filled as they are used.
extern constinit Driver counting_driver;
// Finds libcuda, or waits at the closed gate.
const Driver &driver_slowly() noexcept;
}  // namespace detail

// Returns the driver's functions. Every slot is empty while libcuda is not loaded. Waits while the gate is closed. If
// the process ends meanwhile, every function of the returned driver returns CUDA_ERROR_DEINITIALIZED.
[[gnu::always_inline]] inline const Driver &driver() noexcept {
    return curb_gate.load() == 0 ? detail::the_driver : detail::driver_slowly();
}

// The same, whether the gate is open or closed: for look-ups, and for moving the process. (Always inline: a sanitizer's
// runtime calls it before instrumented code can run, so the linker must not pick another file's copy.)
[[gnu::always_inline]] inline const Driver &driver_behind_gate() noexcept {
    if ((curb_gate.load() & gate::kNoDriver) != 0) detail::find_driver();
    return detail::the_driver;
}

// True if the program has loaded libcuda.
bool driver_loaded() noexcept;

// Returns curb's wrapper for a driver address. Null if curb does not wrap that function.
void *wrapper_of(void *driver_address) noexcept;
// Returns the name of the driver function at this address. Null if curb exports no function for it.
const char *symbol_of(void *driver_address) noexcept;
// Returns the name of the function whose slot this is.
const char *name_of_slot(const void *slot) noexcept;
// Returns the wrapper or thunk that curb exports under exactly this name. Null if there is none.
void *wrapper_named(const char *symbol) noexcept;
// The same for NVML's functions.
void *nvml_wrapper_named(const char *symbol) noexcept;

// Returns the wrapper for an address that cuGetProcAddress returned and no slot holds. If libcuda does not export the
// symbol of the best row for (name, version, flags), that row's slot takes the address. Otherwise returns null.
void *adopt(const char *name, int version, std::uint64_t flags, void *driver_address) noexcept;

// Returns the call of a driver function with these arguments, to be made later: to_driver<&Driver::cuInit>(flags).
template <auto Function, class... Args>
auto to_driver(Args... args) noexcept {
    return [=] { return (driver().*Function)(args...); };
}

// Calls the driver, and once more if it fails: most calls may return an error of earlier work instead of their own.
// The failed call may still have done its work, so use this only for calls that may run twice: no free, release or pop.
template <class Ask>
CUresult ask_twice(Ask ask) noexcept {
    const CUresult result = ask();
    return result == CUDA_SUCCESS ? result : ask();
}
template <auto Function, class... Args>
CUresult ask_twice(Args... args) noexcept {
    return ask_twice(to_driver<Function>(args...));
}

// Sets the driver's relaxed capture mode for this thread (12 ns on an H200). Without it even reading a pool's attribute
// breaks a stream capture in another thread, or a global-mode capture in this one (measured on an H200:
// CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED).
class RelaxedCapture : NoCopy {
  public:
    RelaxedCapture() noexcept : relaxed_(exchange()) {}
    ~RelaxedCapture() {
        if (relaxed_) exchange();
    }

  private:
    // Does not repeat a call that exchanged the modes but returned an error of earlier work.
    bool exchange() noexcept {
        const CUstreamCaptureMode before = mode_;
        const auto once = [&] {
            return driver().cuThreadExchangeStreamCaptureMode(&mode_) == CUDA_SUCCESS || mode_ != before;
        };
        return once() || once();
    }

    CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;  // then the program's
    bool relaxed_;                                               // false if the exchange failed: restore nothing
};

}  // namespace curb::shim
