// Releases: a queue of requests, and the plan that the worker runs for them. It runs the policy's steps in order until
// the requested bytes are free, and measures each on the device.
//
// To add a step, add a row to policy/release_steps.def and a file with its body to steps/.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "control/release_report.hpp"
#include "control/status.hpp"
#include "policy/decisions/release_plan.hpp"

namespace curb::shim::release {

struct Request {
    std::string trigger;  // the cause for the log: "SIGUSR1", "cap lowered", "curb release"
    policy::ReleaseRequest what{};
    std::function<void(const control::ReleaseReport &)> done{};  // called with the result on the worker; may be empty
};

// Queues a release and wakes the worker; does not wait. Drops a request without `done` that equals a queued one. False
// if there is no host memory. Thread-safe.
bool ask(Request request) noexcept;

// Moves the queued requests to the end of `out`. Throws std::bad_alloc before anything is moved. Thread-safe.
void take_queued(std::vector<Request> &out);

// Runs one plan for all requests, logs the bytes that each step freed, calls each request's `done` and clears
// `requests`. Before each step `more` adds newly queued requests, which join the plan. Throws std::bad_alloc and then
// keeps the requests for another run. On the worker.
void run(std::vector<Request> &requests, const std::function<void(std::vector<Request> &)> &more);

// True while a release is running. Thread-safe.
bool is_running() noexcept;
// Returns the time (now_ms) at which the last release ended; 0 if there was none. Thread-safe.
std::uint64_t ended_ms() noexcept;
// Returns the last releases, the newest last. Throws std::bad_alloc. Thread-safe.
std::vector<control::PastRelease> history();

// The reason of a step that a graph capture prevented. curb runs the step again when the capture has ended.
inline constexpr const char *kCapture = "deferred: graph capture";

// How a step ended.
struct Outcome {
    std::string reason{};  // why it could not free everything it is for; empty if it did
    // False if it made no call that frees memory. Memory that the program freed meanwhile does not count then.
    bool tried = true;
};
inline Outcome untried(std::string reason) { return {std::move(reason), false}; }

// The steps' bodies, in steps/NAME.cpp.
namespace step {
#define CURB_STEP(name, ...) Outcome name();
#include "policy/release_steps.def"
}  // namespace step

}  // namespace curb::shim::release
