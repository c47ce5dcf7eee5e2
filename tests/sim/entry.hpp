// How every exported call enters the simulation: it is counted, fails if CURB_SIM_FAULT says so, is refused in a forked
// child and before cuInit, waits while the process is locked by cuCheckpointProcessLock, and then runs its body under
// the one lock of the model.
//
// Rules: a body is written with SIM_CU, SIM_CU_STREAM or SIM_CU_BLOCKING, named exactly as in cuda_functions.def and
// with that row's types (another signature does not compile, a missing body does not link). Bodies run with the lock
// held; what calls back into the program does so through run_unlocked. No exception leaves.
#pragma once

#include <atomic>
#include <cstdint>

#include "cuda_abi.h"

namespace curb::sim {

struct Entry {
    const char *name;
    std::atomic<uint64_t> calls = 0;
};

// One for each export, the per-thread-stream forms too.
namespace entries {
#define CURB_CU(name, types) inline constinit Entry name{#name};
#define CURB_CU_STREAM(name, types) CURB_CU(name, types) CURB_CU(name##_ptsz, types)
#define CURB_CU_BLOCKING(name, types) CURB_CU(name, types) CURB_CU(name##_ptds, types)
#include "cuda_functions.def"
#undef CURB_CU
#undef CURB_CU_STREAM
#undef CURB_CU_BLOCKING
}  // namespace entries

enum class NullStream { legacy, per_thread };

// The scope of one call. `refusal` is what the call must return at once, or success.
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

// The size that the present call is about: under CURB_SIM_LATENCY the time of some calls depends on it.
void this_call_is_about(uint64_t bytes);

// What the call returns whose body returned this: curb_sim_report_next may have it tell of something else.
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
CUresult enter(Entry &entry, NullStream null_stream, Body &&body) noexcept {
    try {
        const Call call(entry, null_stream);
        return call.refusal ? call.refusal : reported(entry, body());
    } catch (...) {  // std::bad_alloc: the host's memory, which is the driver's answer too
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
}

}  // namespace curb::sim

#define SIM_EXPORT extern "C" __attribute__((visibility("default")))

#define SIM_FORWARD(name, params, args, body, null_stream)                               \
    SIM_EXPORT CUresult name params {                                                    \
        return enter(entries::name, NullStream::null_stream, [&] { return body args; }); \
    }

#define SIM_CU(name, params, args)                       \
    static CUresult body_##name params;                  \
    SIM_FORWARD(name, params, args, body_##name, legacy) \
    static CUresult body_##name params

#define SIM_CU_STREAM(name, params, args)                           \
    static CUresult body_##name params;                             \
    SIM_FORWARD(name, params, args, body_##name, legacy)            \
    SIM_FORWARD(name##_ptsz, params, args, body_##name, per_thread) \
    static CUresult body_##name params

#define SIM_CU_BLOCKING(name, params, args)                         \
    static CUresult body_##name params;                             \
    SIM_FORWARD(name, params, args, body_##name, legacy)            \
    SIM_FORWARD(name##_ptds, params, args, body_##name, per_thread) \
    static CUresult body_##name params
