// A release: the steps of the policy in their order until what was asked for is back, each measured on the device. Runs
// on the worker.
//
// Adding a step: a row in policy/release_steps.def and a file in steps/ with its body.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "queue.hpp"

namespace curb::shim::release {

// Runs one plan for these requests and says in one log line what each step gave back. `more` is asked before each step
// and adds the requests that have come meanwhile; they join the plan. Those that were served are gone afterwards.
// Throws std::bad_alloc, and then none is lost: they can be run again.
void run(std::vector<Request> &requests, const std::function<void(std::vector<Request> &)> &more);

// Why a step that a graph capture keeps from doing all it is for did not: what it says then is done when the capture
// has ended.
inline constexpr const char *kCapture = "deferred: graph capture";

// The steps' bodies, steps/NAME.cpp. Each returns why it could not do all it is for; empty: it did.
namespace step {
#define CURB_STEP(name, text) std::string name();
#include "policy/release_steps.def"
}  // namespace step

}  // namespace curb::shim::release
