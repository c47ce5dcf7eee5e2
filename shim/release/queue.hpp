// The queue of requested releases, which the worker runs.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "control/release_report.hpp"
#include "policy/release_plan.hpp"

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

}  // namespace curb::shim::release
