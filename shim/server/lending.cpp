#include "server/lending.hpp"

#include <list>
#include <new>
#include <utility>

#include "base/guarded.hpp"
#include "blocks/ipc.hpp"
#include "driver/gate.hpp"
#include "threads/own_thread.hpp"

namespace curb::shim::lending {
namespace {

struct Asked {
    control::MemoryRequest request;
    control::ProcessName by;
    Answer answer;
};
struct Queue {
    std::list<Asked> asked;  // in order
    bool running = false;    // the thread
};
template <class Act>
auto with_queue(Act act) {
    return leaked<Guarded<Queue>>().locked(act);
}

control::MemoryAnswer lent(const Asked &one) noexcept try {
    return blocks::lend(one.request, one.by);
} catch (const std::bad_alloc &) {
    return {control::Failure{"no host memory"}};  // short enough to need none
}

void serve() {
    const gate::EndsNaps ends_naps;
    for (;;) {
        std::list<Asked> next;
        with_queue([&](Queue &queue) {
            queue.running = !queue.asked.empty();
            if (queue.running) next.splice(next.begin(), queue.asked, queue.asked.begin());
        });
        if (next.empty()) return;
        driver();  // waits at the gate, for which exit() does not wait
        const own_thread::Awake awake;
        next.front().answer(lent(next.front()));
    }
}

}  // namespace

void ask(const control::MemoryRequest &request, pid_t by, Answer answer) {
    std::list<Asked> added;
    added.push_back({request, control::name_of(by).value_or(control::ProcessName{by, 0}), std::move(answer)});
    const bool was_running = with_queue([&](Queue &queue) {
        queue.asked.splice(queue.asked.end(), added);
        return std::exchange(queue.running, true);
    });
    if (was_running || own_thread::start(serve, "curb-share")) return;
    with_queue([&](Queue &queue) {
        added.swap(queue.asked);
        queue.running = false;
    });
    for (const Asked &each : added) each.answer({control::Failure{"no thread could be started to serve it"}});
}

}  // namespace curb::shim::lending
