// How every exported call enters the simulation. The call is counted, fails if CURB_SIM_FAULT says so, is refused in a
// forked child and before cuInit, and waits while the process is locked by cuCheckpointProcessLock. Then its body runs
// under the one lock of the model.
//
// Rules: write a body with SIM_CU, SIM_CU_STREAM or SIM_CU_BLOCKING, named and typed as its row in cuda_functions.def
// (another signature does not compile, a missing body does not link). The first argument is the version of CUDA that
// brought the export, 1000 * major + 10 * minor: cuGetProcAddress and the older drivers (exports.cmake) go by it.
// Source: PFN_name_vVERSION in cudaTypedefs.h of CUDA 13.0. A body returns when the call succeeds, and throws the
// CUresult that the call fails with. It holds the lock; it calls back into the program through run_unlocked.
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>

#include "abi/cuda_abi.h"

namespace curb::sim {

struct Entry {
    const char *name;
    int since;  // 0: a per-thread form, which has the name and the version of its legacy form
    std::atomic<uint64_t> calls = 0;
};

// One for each export, per-thread forms included.
namespace entries {
#define CURB_CU(name, types) extern Entry name;
#define CURB_CU_STREAM(name, types) CURB_CU(name, types) CURB_CU(name##_ptsz, types)
#define CURB_CU_BLOCKING(name, types) CURB_CU(name, types) CURB_CU(name##_ptds, types)
#include "abi/cuda_functions.def"
#undef CURB_CU
#undef CURB_CU_STREAM
#undef CURB_CU_BLOCKING
}  // namespace entries

// Returns null if there is no export of that name.
Entry *find_entry(std::string_view name);

enum class NullStream { legacy, per_thread };

// The scope of one call. If `refusal` is not success, the call must return it at once.
class Call {
  public:
    Call(Entry &entry, NullStream null_stream);
    ~Call();
    Call(const Call &) = delete;
    Call &operator=(const Call &) = delete;

    CUresult refusal = CUDA_SUCCESS;

  private:
    Entry &entry_;
    bool locked_ = false;
    bool counted_ = false;
};

// Sets the size of the current call. Under CURB_SIM_LATENCY the time of some calls depends on it.
void this_call_is_about(uint64_t bytes);

// Returns `result`, or the error that curb_sim_report_next has set in its place.
CUresult reported(const Entry &entry, CUresult result);

void lock_model();
void unlock_model();

template <class Function>
void run_unlocked(Function &&function) {
    unlock_model();
    function();
    lock_model();
}

template <class Body>
CUresult result_of(Body &&body) {
    try {
        body();
        return CUDA_SUCCESS;
    } catch (const CUresult error) {
        return error;
    } catch (...) {  // std::bad_alloc: the driver returns this too if the host has no memory
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
}

template <class Body>
CUresult enter(Entry &entry, NullStream null_stream, Body &&body) noexcept {
    const Call call(entry, null_stream);
    return call.refusal ? call.refusal : reported(entry, result_of(body));
}

}  // namespace curb::sim

#define SIM_EXPORT extern "C" __attribute__((visibility("default")))

#define SIM_FORWARD(since, name, params, args, body, null_stream)                        \
    constinit Entry entries::name{#name, since};                                         \
    SIM_EXPORT CUresult name params {                                                    \
        return enter(entries::name, NullStream::null_stream, [&] { return body args; }); \
    }

#define SIM_CU(since, name, params, args)                       \
    static void body_##name params;                             \
    SIM_FORWARD(since, name, params, args, body_##name, legacy) \
    static void body_##name params

#define SIM_CU_STREAM(since, name, params, args)                       \
    static void body_##name params;                                    \
    SIM_FORWARD(since, name, params, args, body_##name, legacy)        \
    SIM_FORWARD(0, name##_ptsz, params, args, body_##name, per_thread) \
    static void body_##name params

#define SIM_CU_BLOCKING(since, name, params, args)                     \
    static void body_##name params;                                    \
    SIM_FORWARD(since, name, params, args, body_##name, legacy)        \
    SIM_FORWARD(0, name##_ptds, params, args, body_##name, per_thread) \
    static void body_##name params
