// Where a thunk jumps to if the gate is closed or its slot is empty.

#include <atomic>
#include <cstdint>

#include "base/keep_errno.hpp"
#include "driver/driver.hpp"
#include "driver/gate.hpp"
#include "driver/libcuda.hpp"
#include "driver/stubs.hpp"
#include "driver/thunks/thunks.hpp"

namespace curb::shim::thunks {
namespace {

CUresult is_ending() noexcept { return CUDA_ERROR_DEINITIALIZED; }
nvmlReturn_t nvml_is_ending() noexcept { return NVML_ERROR_UNINITIALIZED; }
CUresult has_no_device() noexcept { return CUDA_ERROR_NO_DEVICE; }
CUresult lacks_function() noexcept { return CUDA_ERROR_NOT_INITIALIZED; }
template <class Function>
void *address_of(Function *function) noexcept {
    return reinterpret_cast<void *>(function);
}

// Detects a stub that calls curb again without having loaded libcuda, which would recurse for ever. If the stub calls
// curb, each frame lies below the last one. If it jumps to curb, all frames are the same; but so are those of a loop in
// the program, so many more of these are allowed.
struct StubCalls {
    const void *frame = nullptr;  // of the last one
    int below = 0, same = 0;      // in a row
};
constinit thread_local StubCalls stub_calls;

// True if the calls of stubs on this thread do not end by themselves. `frame`: of this call.
bool is_endless(const void *frame) noexcept {
    constexpr int kMostBelow = 16, kMostSame = 4096;
    StubCalls &calls = stub_calls;
    if (frame > calls.frame)
        calls.below = calls.same = 0;
    else
        ++(frame < calls.frame ? calls.below : calls.same);
    calls.frame = frame;
    if (calls.below < kMostBelow && calls.same < kMostSame) return false;
    calls = {};
    return true;
}

// Returns the address for an exported thunk with an empty slot: the program's own stub if libcuda is not loaded.
void *without_function(const char *name, const std::atomic<void *> &slot) noexcept {
    const KeepErrno keep_errno;
    if (!driver_loaded() && !is_endless(__builtin_frame_address(0)))
        if (void *stub = stubs::definition(name, named(name), stubs::caller())) return stub;
    if (!driver_loaded()) detail::load_driver();
    if (!driver_loaded()) return address_of(has_no_device);
    void *function = slot.load();
    return function ? function : address_of(lacks_function);
}

}  // namespace

// What a thunk does with its call.
struct Target {
    void *function;
    // 0: it jumps there. Else the call is counted: it calls the function, and curb_thunk_returned() after it.
    std::uintptr_t is_counted;
};

extern "C" {
#define CURB_INTERNAL __attribute__((used, visibility("hidden")))

CURB_INTERNAL Target curb_thunk_target(std::atomic<void *> *slot) noexcept {
    using gate::Passing;
    const char *name = name_of(slot);
    gate::note_call();
    const void *target = slot->load();
    const bool answers = name && answers_while_closed(name);
    const bool passes_gate = answers || gate::counts_all() || !gate::is_closed() || gate::wait();
    const Passing passing = !passes_gate                     ? Passing::ended
                            : answers || !gate::counts_all() ? Passing::uncounted
                                                             : gate::begin_call(slot);
    if (passing == Passing::ended) {
        const bool is_drivers = name || libcuda::range().has(reinterpret_cast<std::uintptr_t>(target));
        return {is_drivers ? address_of(is_ending) : address_of(nvml_is_ending), 0};
    }
    void *function = slot->load();
    return {function ? function : without_function(name, *slot), passing == Passing::counted ? 1U : 0U};
}

CURB_INTERNAL void curb_thunk_returned() noexcept { gate::end_call(); }
}

}  // namespace curb::shim::thunks
