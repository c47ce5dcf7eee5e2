#include "queue.hpp"

#include <algorithm>
#include <iterator>
#include <mutex>
#include <utility>

#include "lifetime.hpp"
#include "log.hpp"
#include "worker_signal.hpp"

namespace curb::shim::release {
namespace {

struct Queue {
    std::mutex mutex;
    std::vector<Request> requests;
};
Queue &queue() noexcept { return leaked<Queue>(); }

}  // namespace

bool ask(Request request) noexcept try {
    {
        const std::scoped_lock lock(queue().mutex);
        auto &waiting = queue().requests;
        const auto same = [&](const Request &one) {
            return !one.done && one.trigger == request.trigger && one.what == request.what;
        };
        if (!request.done && std::any_of(waiting.begin(), waiting.end(), same)) return true;
        waiting.push_back(std::move(request));
    }
    worker::wake_up();
    return true;
} catch (...) {
    log::write(policy::LogLevel::error, "out of host memory: a requested release is dropped");
    return false;
}

void take_queued(std::vector<Request> &out) {
    const std::scoped_lock lock(queue().mutex);
    auto &requests = queue().requests;
    out.reserve(out.size() + requests.size());
    out.insert(out.end(), std::make_move_iterator(requests.begin()), std::make_move_iterator(requests.end()));
    requests.clear();
}

}  // namespace curb::shim::release
