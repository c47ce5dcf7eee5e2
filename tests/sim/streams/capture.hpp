// Stream capture: which calls are allowed during one (cuda.h, cuStreamBeginCapture and
// cuThreadExchangeStreamCaptureMode) and which break it (docs/results/driver.md).
#pragma once

#include <cstdint>
#include <functional>
#include <map>

#include "abi/cuda_abi.h"
#include "graphs.hpp"

namespace curb::sim {

// A capture in progress.
struct Capture {
    uint64_t id;
    uint64_t origin_id;
    CUcontext context;
    CUstreamCaptureMode mode;
    uint64_t thread;
    CUgraph graph;
    bool graph_is_the_callers;
    bool origin_blocking;  // the stream synchronises with the legacy stream
    bool invalidated = false;
    std::map<uint64_t, bool> forks;  // stream id -> joined to the origin again
};

// Every call that could disturb a capture calls this first. If the thread's mode forbids the call
// (cuThreadExchangeStreamCaptureMode), breaks the captures in its way and throws.
void refuse_during_capture();
// For cuCtxSynchronize, which no mode allows (docs/results/driver.md).
void refuse_synchronising_captured(CUcontext context);
// Throws if the stream is captured, or is the legacy stream and would wait for a captured one.
void refuse_if_capturing(const Stream &stream);
void invalidate(Capture &capture);
// Ends the capture: by the program's call, or because its stream or context is destroyed.
void abandon(Capture &capture);

// Submits work to a stream: records it in a capture, otherwise runs it at once. Before each run `prepare` takes the
// memory that the work needs, or throws.
void submit(Stream &stream, CUgraphNodeType type, Work work, std::function<void()> prepare = {});

// Stream-ordered allocation and free on a stream that is being captured.
CUdeviceptr capture_allocation(Stream &stream, const CUmemPoolProps &properties, uint64_t bytes);
void capture_free(Stream &stream, CUdeviceptr start);

}  // namespace curb::sim
