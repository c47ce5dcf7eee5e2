#include "running.hpp"

#include <algorithm>
#include <csignal>
#include <list>
#include <mutex>
#include <thread>
#include <utility>

#include "driver.hpp"
#include "latency.hpp"

namespace curb::sim {

namespace {

using Clock = std::chrono::steady_clock;

struct Range {
    CUdeviceptr start;
    uint64_t bytes;
    bool meets(const Range &other) const { return start < other.start + other.bytes && other.start < start + bytes; }
};

constexpr Clock::time_point kUnknown = Clock::time_point::max();

struct Running {
    uint64_t stream_id, ticket;
    CUcontext context;
    int device;
    Clock::time_point end;               // kUnknown: of a host function that has not returned, and of what waits for it
    std::chrono::microseconds duration;  // of a kernel
    Progress before;                     // the work that it waits for
    std::vector<Range> blocks;           // of a kernel
    std::function<void()> host_function;  // null for a kernel, and once the function has been called

    bool is_part_of(const Progress &progress) const { return covers(progress, stream_id, ticket); }
    bool meets(const Running &other) const {
        return std::any_of(blocks.begin(), blocks.end(), [&](const Range &mine) {
            return std::any_of(other.blocks.begin(), other.blocks.end(),
                               [&](const Range &theirs) { return mine.meets(theirs); });
        });
    }
};

// In the order of submission. A list: a host call keeps its place while the lock is released.
std::list<Running> &running() {
    static auto &all = *new std::list<Running>;
    return all;
}

// Returns when the last of this work ends; a time in the past if none runs.
template <class Predicate>
Clock::time_point end_of(Predicate predicate) {
    Clock::time_point end{};
    for (const Running &one : running())
        if (predicate(one)) end = std::max(end, one.end);
    return end;
}
Clock::time_point end_of(const Progress &progress) {
    return end_of([&](const Running &one) { return one.is_part_of(progress); });
}

// Waits for this work, as far as it has been submitted by now.
template <class Predicate>
void wait_for(Predicate predicate) {
    constexpr std::chrono::microseconds kNextLook{200};
    const uint64_t last = driver().last_ticket;
    for (;;) {
        const auto end = end_of([&](const Running &one) { return one.ticket <= last && predicate(one); });
        if (end <= Clock::now()) return;
        run_unlocked([=] { std::this_thread::sleep_until(std::min(end, Clock::now() + kNextLook)); });
    }
}

Running &add(const Stream &stream) {
    const auto now = Clock::now();
    std::erase_if(running(), [=](const Running &one) { return one.end <= now; });
    Progress before = work_before(stream);
    return running().emplace_back(Running{.stream_id = stream.id,
                                          .ticket = ++driver().last_ticket,
                                          .context = stream.context,
                                          .device = stream.device,
                                          .end = kUnknown,
                                          .duration = {},
                                          .before = std::move(before),
                                          .blocks = {},
                                          .host_function = {}});
}

// Sets the ends of kernels that are known now.
void begin_what_can() {
    for (Running &one : running()) {
        if (one.end != kUnknown || one.duration.count() == 0) continue;
        const auto begin = std::max(Clock::now(), end_of(one.before));
        if (begin == kUnknown) continue;
        one.end = begin + one.duration;
        const bool overlaps = std::any_of(running().begin(), running().end(), [&](const Running &other) {
            return &other != &one && other.end != kUnknown && other.end > begin && other.meets(one);
        });
        if (overlaps) driver().machine->note_overlap(device_at(one.device).gpu);
    }
}

// The driver's thread: calls host functions, one at a time, each when the work before it has ended.
void call_host_functions() {
    for (;;) {
        std::this_thread::sleep_for(std::chrono::microseconds(200));
        lock_model();
        const auto now = Clock::now();
        const auto next = std::find_if(running().begin(), running().end(), [=](const Running &one) {
            return one.host_function && end_of(one.before) <= now;
        });
        if (next != running().end()) {
            const std::function<void()> function = std::exchange(next->host_function, {});
            run_unlocked(function);
            next->end = Clock::now();
            begin_what_can();
            driver().machine->end_call();
        }
        unlock_model();
    }
}

}  // namespace

void begin_kernel(const Stream &stream, std::chrono::microseconds duration, const std::vector<CUdeviceptr> &addresses) {
    Running &kernel = add(stream);
    kernel.duration = duration;
    for (const CUdeviceptr address : addresses)
        if (const Allocation *block = allocation_around(address)) kernel.blocks.push_back({block->start, block->bytes});
    begin_what_can();
}

void begin_copy(const Stream &stream, bool to_host, uint64_t bytes) {
    const auto duration = time_of_copy(Bus::pinned, bytes);
    const auto before = end_of(work_before(stream));
    if (duration.count() == 0 || before == kUnknown) return;  // behind a host function it takes no time of its own
    const auto begin = std::max(Clock::now(), before);
    add(stream).end = driver().machine->end_of_copy(device_at(stream.device).gpu, to_host, begin, duration);
}

void begin_host_call(const Stream &stream, std::function<void()> function) {
    static std::once_flag once;
    std::call_once(once, [] {
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        std::thread(call_host_functions).detach();
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
    });
    driver().machine->keep_call();
    add(stream).host_function = std::move(function);
}

bool runs(const Progress &progress) { return end_of(progress) > Clock::now(); }

void wait_for_work(const Progress &progress) {
    wait_for([&](const Running &one) { return one.is_part_of(progress); });
}

void wait_for_work_of(CUcontext context) {
    wait_for([=](const Running &one) { return one.context == context; });
}

void wait_for_all_work(int device) {
    wait_for([=](const Running &one) { return one.device == device; });
}

}  // namespace curb::sim
