// Stream capture: who may do what while one is in progress (cuda.h, cuStreamBeginCapture and
// cuThreadExchangeStreamCaptureMode; docs/results/driver.md, for what breaks one).
#pragma once

#include <cstdint>
#include <functional>
#include <map>

#include "cuda_abi.h"

namespace curb::sim {

struct Stream;

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

// Calls that could disturb a capture ask first, each by the rules of cuThreadExchangeStreamCaptureMode: when the
// calling thread's mode forbids it, the captures in its way are broken and the call fails.
void refuse_during_capture();
// cuCtxSynchronize: no mode allows it (docs/results/driver.md).
void refuse_synchronising_captured(CUcontext context);
// A stream whose work is captured cannot be waited for.
void refuse_if_capturing(const Stream &stream);
void invalidate(Capture &capture);
// Its stream or its context goes.
void abandon(Capture &capture);

// Work for a stream: recorded when it is captured, done at once when not. `prepare` takes what it needs, or says why
// not.
void submit(Stream &stream, CUgraphNodeType type, std::function<void()> work, std::function<void()> prepare = {});

// Captured forms of the stream-ordered calls; `stream` is being captured.
CUdeviceptr capture_allocation(Stream &stream, const CUmemPoolProps &properties, uint64_t bytes);
void capture_free(Stream &stream, CUdeviceptr start);

}  // namespace curb::sim
