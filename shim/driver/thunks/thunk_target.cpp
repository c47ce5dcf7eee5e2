// Where a thunk jumps to if the gate is closed or its slot is empty.

#include <atomic>

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

extern "C" __attribute__((used, visibility("hidden"))) void *curb_thunk_target(std::atomic<void *> *slot) noexcept {
    const char *name = name_of(slot);
    gate::note_call();
    void *target = slot->load();
    if (gate::is_closed() && !(name && answers_while_closed(name)) && !gate::wait())
        return name || libcuda::range().has(reinterpret_cast<std::uintptr_t>(target)) ? address_of(is_ending)
                                                                                      : address_of(nvml_is_ending);
    target = slot->load();
    return target ? target : without_function(name, *slot);
}

}  // namespace curb::shim::thunks
