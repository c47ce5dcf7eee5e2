// A release: the steps of the policy in their order, each measured on the device. Runs on the worker.
//
// Adding a step: a row in policy/release_steps.def and a file here with its body.
#pragma once

#include <string>

#include "policy/policy.hpp"

namespace curb::shim::release {

// Runs the plan once and says in one log line what each step gave back. `trigger`: for what reason, as the log says it.
void run(const std::string &trigger);

// The steps' bodies, release/NAME.cpp. Each returns why it could not do all it is for; empty: it did.
namespace step {
#define CURB_STEP(name, text) std::string name();
#define CURB_PLANNED_STEP(name, text)
#include "policy/release_steps.def"
}  // namespace step

}  // namespace curb::shim::release
