#include "device/sharers.hpp"

#include <unistd.h>

#include <array>

#include "base/guarded.hpp"
#include "base/keep_errno.hpp"
#include "control/board.hpp"
#include "device/wait_queue.hpp"
#include "host/clock.hpp"

namespace curb::shim::sharers {
namespace {

struct Seen {
    Bytes bytes = 0;
    std::uint64_t again_ms = 0;
};
constinit Guarded<std::array<Seen, devices::kMost>> seen;

// The pid and the start alone may be those of several processes, each in a container of its own.
bool is_same(const control::board::Posted &one, const control::Ticket::Lacking &other) noexcept {
    return one.entry.process == other.process && one.entry.pid_namespace == other.pid_namespace &&
           one.owner == other.owner;
}

}  // namespace

std::vector<policy::turns::Runner> others(const Device &device, const control::Ticket::Lacking *but) {
    std::vector<policy::turns::Runner> out;
    const control::Places *places = wait_queue::places();
    if (!places) return out;
    const std::string uuid = device.meter.uuid();
    for (const control::board::Posted &posted : control::board::read_all(*places)) {
        const int pid = posted.entry.process.pid;
        if ((posted.here && pid == getpid()) || (but && is_same(posted, *but))) continue;
        for (const control::board::Gpu &gpu : posted.entry.gpus)
            if (gpu.turn && gpu.uuid == uuid)
                out.push_back({static_cast<std::uint64_t>(pid), gpu.turn->ends,
                               gpu.held ? std::min(gpu.turn->leaves, *gpu.held) : 0});
    }
    return out;
}

Bytes can_leave(const Device &device) noexcept try {
    constexpr std::uint64_t kAgainMs = 500;
    const auto update = [&](auto act) {
        return seen.locked([&](auto &all) { return act(all[static_cast<std::size_t>(device.ordinal)]); });
    };
    const bool is_due = update([](Seen &now) {
        if (now_ms() < now.again_ms) return false;
        now.again_ms = now_ms() + kAgainMs;
        return true;
    });
    if (is_due) {
        const KeepErrno keep_errno;
        Bytes bytes = 0;
        for (const policy::turns::Runner &one : others(device)) bytes = policy::added(bytes, one.bytes);
        update([=](Seen &now) { now.bytes = bytes; });
    }
    return update([](const Seen &now) { return now.bytes; });
} catch (...) {
    return 0;
}

}  // namespace curb::shim::sharers
