// Streams, events, and the work that the host has seen complete. Work is complete as soon as it is submitted, except
// kernels that take time (running.hpp). The model records when the driver learns of it, since that decides when pools
// give memory back (docs/results/driver.md).
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>

#include "abi/cuda_abi.h"

namespace curb::sim {

struct Capture;

using Progress = std::map<uint64_t, uint64_t>;  // stream id -> ticket of its last work
inline bool covers(const Progress &progress, uint64_t stream_id, uint64_t ticket) {
    const auto last = progress.find(stream_id);
    return last != progress.end() && ticket <= last->second;
}

struct Stream {
    static constexpr CUresult kUnknown = CUDA_ERROR_INVALID_HANDLE;
    CUstream handle = nullptr;
    CUcontext context = nullptr;
    int device = 0;
    unsigned flags = CU_STREAM_DEFAULT;
    int priority = 0;
    bool legacy = false;
    uint64_t id = 0;
    Capture *capture = nullptr;
    Progress waited_for;  // by cuStreamWaitEvent
};

struct Event {
    static constexpr CUresult kUnknown = CUDA_ERROR_INVALID_HANDLE;
    CUevent handle = nullptr;
    CUcontext context = nullptr;
    unsigned flags = CU_EVENT_DEFAULT;
    bool recorded = false;
    uint64_t stream_id = 0;
    uint64_t capture_id = 0;  // not 0: recorded in that capture, which may be over
    Progress after;           // the work that is complete when the event is
    std::chrono::steady_clock::time_point time;
};

std::unique_ptr<Stream> make_stream(CUcontext context, int device, unsigned flags, int priority);

// Returns the stream that a handle means in this call. Null and the two special handles need a current context.
Stream *find_stream(CUstream handle);

// Returns the work before the stream's next: its own, what it waited for and, through the legacy stream, that of
// others.
Progress work_before(const Stream &stream);
// Records that the host has seen this work complete; then the same for all work on a device.
void seen_complete(const Progress &progress);
void all_seen_complete(int device);

}  // namespace curb::sim
