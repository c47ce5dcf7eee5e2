// Releases that were asked for, on their way to the worker.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "control/release_report.hpp"
#include "policy/release_plan.hpp"

namespace curb::shim::release {

struct Request {
    std::string trigger;  // why, as the log says it: "SIGUSR1", "cap lowered", "curb release"
    policy::ReleaseRequest what{};
    std::function<void(const control::ReleaseReport &)> done{};  // called with the result on the worker; may be empty
};

// Queues a release and wakes the worker; does not wait. One without `done` that equals a queued one is dropped. False:
// there is no host memory for it. Thread-safe.
bool ask(Request request) noexcept;

// Moves the queued requests to the end of `out`. Throws std::bad_alloc before anything is moved. Thread-safe.
void take_queued(std::vector<Request> &out);

}  // namespace curb::shim::release
