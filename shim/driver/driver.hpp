// The real driver: one slot for each row of entry_points.def, typed by its declaration, filled from the libcuda that
// the program has loaded. A call that comes before libcuda is loaded goes to the program's own stub of the function,
// which loads it (stubs.hpp).
//
// Thread-safe. driver() costs one atomic load once the driver is there.
#pragma once

#include <atomic>
#include <cstdint>

#include "stubs.hpp"

#pragma GCC visibility push(default)
#include "cuda_abi.h"
#include "nvml_abi.h"
#pragma GCC visibility pop

namespace curb::shim {

namespace detail {
extern constinit std::atomic<bool> filled;
// The program's own stub for an empty slot, if libcuda is not loaded. If the program has none, loads libcuda, which
// fills the slot, and returns nullptr.
void *instead_of(const void *slot) noexcept;
}  // namespace detail

// A driver function. If the loaded libcuda lacks it: CUDA_ERROR_NOT_INITIALIZED. If there is no libcuda:
// CUDA_ERROR_NO_DEVICE, as on a machine without a GPU.
template <class F>
class Slot;
template <class... Args>
class Slot<CUresult(Args...)> {
  public:
    CUresult operator()(Args... args) const {
        auto *function = address.load(std::memory_order_relaxed);
        return function ? function(args...) : call_instead(args..., *this);
    }

    std::atomic<CUresult (*)(Args...)> address{nullptr};

  private:
    // The slot comes last: the arguments stay in their registers.
    [[gnu::cold, gnu::noinline]] static CUresult call_instead(Args... args, const Slot &slot) {
        const stubs::Call call(&slot);
        auto *function =
            reinterpret_cast<CUresult (*)(Args...)>(call.is_nested() ? nullptr : detail::instead_of(&slot));
        if (function) return function(args...);
        return detail::filled.load(std::memory_order_acquire) ? CUDA_ERROR_NOT_INITIALIZED : CUDA_ERROR_NO_DEVICE;
    }
};

// The functions that curb exports come first, in the order of their rows: a slot's place tells its row.
struct Driver {
#define CURB_WRAP(symbol, base, since, stream, rule) Slot<decltype(::symbol)> symbol;
#include "entry_points.def"
#define CURB_CALL(symbol) Slot<decltype(::symbol)> symbol;
#include "entry_points.def"
};

namespace detail {
extern constinit Driver the_driver;
bool find_driver() noexcept;
}  // namespace detail

// The driver's functions; every slot is empty while libcuda is not loaded. (Always inline: a sanitizer's runtime comes
// by here before instrumented code can run, and must not be given another file's copy.)
[[gnu::always_inline]] inline const Driver &driver() noexcept {
    if (!detail::filled.load(std::memory_order_acquire)) detail::find_driver();
    return detail::the_driver;
}

// Whether the program has libcuda loaded.
bool driver_loaded() noexcept;

// The wrapper for an address that the driver gave out; null: not one of ours.
void *wrapper_of(void *driver_address) noexcept;
// The export that the driver has at an address; null: curb stands in front of none there.
const char *symbol_of(void *driver_address) noexcept;
// The wrapper exported under exactly this name; null: not in the table.
void *wrapper_named(const char *symbol) noexcept;
// The same for the functions of NVML.
void *nvml_wrapper_named(const char *symbol) noexcept;

// What cuGetProcAddress answers for an address that is no row's: a row whose symbol this libcuda does not export takes
// the address for its own (name, version, flags); everything else passes as it is.
void *adopt(const char *name, int version, std::uint64_t flags, void *driver_address) noexcept;

// Asks the driver something whose answer the books hang on, and once more if it does not answer: most calls may return
// an error of earlier work instead of their own. They may also have done their work then, so this is for what can be
// done twice, and not for a free, a release or a pop.
template <class Ask>
CUresult ask_twice(Ask ask) noexcept {
    const CUresult result = ask();
    return result == CUDA_SUCCESS ? result : ask();
}

// While it lives, calls of this thread into the driver do not break a stream capture in progress elsewhere, nor one in
// global mode in this thread (the driver's relaxed mode; 12 ns on an H200). Even reading a pool's attribute breaks a
// capture without it (measured on an H200: CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED).
class RelaxedCapture {
  public:
    RelaxedCapture() noexcept : relaxed_(exchange()) {}
    ~RelaxedCapture() {
        if (relaxed_) exchange();
    }
    RelaxedCapture(const RelaxedCapture &) = delete;
    RelaxedCapture &operator=(const RelaxedCapture &) = delete;

  private:
    // Not twice if the first has exchanged the two, whatever it returned.
    bool exchange() noexcept {
        const CUstreamCaptureMode before = mode_;
        const auto once = [&] {
            return driver().cuThreadExchangeStreamCaptureMode(&mode_) == CUDA_SUCCESS || mode_ != before;
        };
        return once() || once();
    }

    CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;  // then the program's
    bool relaxed_;                                               // else the mode is the program's still, and stays it
};

}  // namespace curb::shim
