// A release: runs the policy's steps in order until the requested bytes are free, and measures each on the device. Runs
// on the worker.
//
// To add a step, add a row to policy/release_steps.def and a file with its body to steps/.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "queue.hpp"

namespace curb::shim::release {

// Runs one plan for all requests, logs what each step freed, calls each request's `done` and clears `requests`. Before
// each step `more` adds newly queued requests, which join the plan. Throws std::bad_alloc, and then keeps the requests,
// so that they can be run again.
void run(std::vector<Request> &requests, const std::function<void(std::vector<Request> &)> &more);

// The reason of a step that a graph capture prevented. curb runs the step again when the capture has ended.
inline constexpr const char *kCapture = "deferred: graph capture";

// The steps' bodies, in steps/NAME.cpp. Each returns why it could not free everything it is for; empty if it did.
namespace step {
#define CURB_STEP(name, text) std::string name();
#include "policy/release_steps.def"
}  // namespace step

}  // namespace curb::shim::release
