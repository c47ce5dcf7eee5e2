#include "running.hpp"

#include <algorithm>
#include <thread>

#include "driver.hpp"

namespace curb::sim {

namespace {

using Clock = std::chrono::steady_clock;

struct Range {
    CUdeviceptr start;
    uint64_t bytes;
    bool meets(const Range &other) const { return start < other.start + other.bytes && other.start < start + bytes; }
};

struct RunningKernel {
    uint64_t stream_id, ticket;
    CUcontext context;
    int device;
    Clock::time_point end;
    std::vector<Range> blocks;

    bool is_part_of(const Progress &progress) const { return covers(progress, stream_id, ticket); }
    bool meets(const RunningKernel &other) const {
        return std::any_of(blocks.begin(), blocks.end(), [&](const Range &mine) {
            return std::any_of(other.blocks.begin(), other.blocks.end(),
                               [&](const Range &theirs) { return mine.meets(theirs); });
        });
    }
};

std::vector<RunningKernel> &running() {
    static auto &all = *new std::vector<RunningKernel>;
    return all;
}

// Returns when the last of these kernels ends; a time in the past if none runs.
template <class Predicate>
Clock::time_point end_of(Predicate predicate) {
    Clock::time_point end{};
    for (const RunningKernel &kernel : running())
        if (predicate(kernel)) end = std::max(end, kernel.end);
    return end;
}

void wait_until(Clock::time_point end) {
    if (end > Clock::now()) run_unlocked([=] { std::this_thread::sleep_until(end); });
}

}  // namespace

void begin_kernel(const Stream &stream, std::chrono::microseconds duration, const std::vector<CUdeviceptr> &addresses) {
    const auto now = Clock::now();
    std::erase_if(running(), [=](const RunningKernel &kernel) { return kernel.end <= now; });
    const Progress before = work_before(stream);
    const auto begin = std::max(now, end_of([&](const RunningKernel &kernel) { return kernel.is_part_of(before); }));
    RunningKernel kernel{stream.id, driver().last_ticket, stream.context, stream.device, begin + duration, {}};
    for (const CUdeviceptr address : addresses)
        if (const Allocation *block = allocation_around(address)) kernel.blocks.push_back({block->start, block->bytes});
    const bool overlaps = std::any_of(running().begin(), running().end(), [&](const RunningKernel &other) {
        return other.end > begin && other.meets(kernel);
    });
    if (overlaps) driver().machine->note_overlap(device_at(stream.device).gpu);
    running().push_back(std::move(kernel));
}

bool runs(const Progress &progress) {
    return end_of([&](const RunningKernel &kernel) { return kernel.is_part_of(progress); }) > Clock::now();
}

void wait_for_work(const Progress &progress) {
    wait_until(end_of([&](const RunningKernel &kernel) { return kernel.is_part_of(progress); }));
}

void wait_for_work_of(CUcontext context) {
    wait_until(end_of([=](const RunningKernel &kernel) { return kernel.context == context; }));
}

void wait_for_all_work(int device) {
    wait_until(end_of([=](const RunningKernel &kernel) { return kernel.device == device; }));
}

}  // namespace curb::sim
