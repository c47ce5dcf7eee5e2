#include "nap/back.hpp"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <string>

#include "base/waiting.hpp"
#include "control/host_room.hpp"
#include "device/devices.hpp"
#include "device/wait_queue.hpp"
#include "driver/gate.hpp"
#include "host/clock.hpp"
#include "host/log.hpp"
#include "limits/in_force.hpp"
#include "move/move.hpp"
#include "nap/helper.hpp"
#include "nap/state.hpp"
#include "policy/decisions/move.hpp"
#include "policy/values/duration.hpp"
#include "threads/own_thread.hpp"

namespace curb::shim::nap {
namespace {

using policy::LogLevel;

// The room on the GPUs for what curb brings back, in the order of all processes that wait for memory there.
class Room : NoCopy {
  public:
    // True if each device has room for what is out of it, which then is reserved: of other processes under curb, those
    // that wait for memory leave it free. Else it keeps its place in the order. Calls the driver behind the gate. May
    // throw std::bad_alloc.
    [[nodiscard]] bool take();
    void give_up() noexcept;

  private:
    std::map<int, wait_queue::Wait> waits_;  // by device
};

bool Room::take() {
    constexpr auto kOrder = wait_queue::Order::device;
    bool has_room = true;
    for (const Device &device : devices::all()) {
        const Bytes bytes = move::needed(device);
        if (bytes == 0) {  // or an earlier attempt has brought it back
            waits_.erase(device.ordinal);
            continue;
        }
        wait_queue::Wait &wait = waits_[device.ordinal];
        const Bytes free = move::free_of(device);
        has_room = wait.may_take(kOrder, device, bytes, free) && bytes <= free && has_room;
    }
    for (auto &[ordinal, wait] : waits_)
        has_room = has_room && wait.reserve(kOrder, move::free_of(devices::at(ordinal)));
    if (!has_room) give_up();
    return has_room;
}

void Room::give_up() noexcept {
    for (auto &[ordinal, wait] : waits_) wait.give_up_reservation(wait_queue::Order::device);
}

// True after the driver's exit handler, or the last one of curb.
bool has_driver_ended() noexcept {
    int count = 0;
    return gate::has_ended() ||
           ask_twice([&] { return driver_behind_gate().cuDeviceGetCount(&count); }) == CUDA_ERROR_DEINITIALIZED;
}

}  // namespace

std::optional<CUprocessState> state_by_driver() noexcept {
    CUprocessState state{};
    const auto ask = [&] { return driver_behind_gate().cuCheckpointProcessGetState(getpid(), &state); };
    if (ask_twice(ask) != CUDA_SUCCESS) return std::nullopt;
    return state;
}

bool is_in_its_gpus() noexcept { return state_by_driver() == CU_PROCESS_STATE_RUNNING; }

void sleep_asleep(std::uint64_t ms) noexcept {
    const own_thread::Asleep asleep;
    sleep_ms(ms);
}

void trim_host_memory() {
    const move::Kept kept = move::kept();
    if (kept.bytes == 0) return;
    const auto now = in_force::snapshot();
    const policy::SuspendPolicy &policy = now->policy.suspend;
    constexpr policy::Duration kNever = policy::Duration::max();
    const auto pause = std::min(policy.idle.value_or(kNever), policy.when_others_wait.value_or(kNever));
    const auto room = control::host_room(getpid());
    if (!room || now_ms() - kept.since_ms >= static_cast<std::uint64_t>(policy::kept_for(pause).count()))
        return move::keep_at_most(0);
    const Bytes most = policy::most_of_host(room->total, policy.host_memory, now->policy.host_memory_ceiling);
    move::keep_at_most(policy::kept_of_host(kept.bytes, room->available, room->total, most));
}

void note_room(bool is_missing) {
    locked([=](State &state) {
        if (is_missing && state.no_room_since_ms != 0) return;
        state.no_room_since_ms = is_missing ? now_ms() : 0;
        state.status.no_room_since = is_missing ? control::unix_now() : 0;
    });
}

void bring_back_deeply() {
    const std::string pid = std::to_string(getpid());
    for (std::uint64_t pause_ms = 100; !is_in_its_gpus(); pause_ms = std::min<std::uint64_t>(2 * pause_ms, 10'000)) {
        Helper helper;
        std::string said;
        if (helper.start({"resume", "--wait", "24h", pid}))
            while (const auto line = helper.line()) said = *line;
        if (helper.end() == 0 && is_in_its_gpus()) return;
        if (said.empty()) said = Helper::why_none();
        log::write(LogLevel::error, "this process cannot come back to its GPUs yet: " + said);
        sleep_asleep(pause_ms);
    }
}

bool bring_back_lightly(bool once) {
    if (!move::is_out()) return true;
    Room room;
    for (std::uint64_t pause_ms = 20;;) {
        if (has_driver_ended()) return gate::at_exit(), false;
        if (room.take()) {
            const std::uint64_t began_ms = now_ms();
            const move::Back back = move::in();
            locked([&](State &state) { state.status.light.back_ms = now_ms() - began_ms; });
            switch (back) {
                case move::Back::done: return note_room(false), true;
                case move::Back::broken:
                    log::write(LogLevel::error,
                               "an error has ended a context while the process was out of its GPUs: its memory is "
                               "there without its contents, and its calls return the error");
                    return note_room(false), true;
                case move::Back::no_room: pause_ms = 100; break;
                case move::Back::failed:
                    log::write(LogLevel::error,
                               "this process cannot come back to its GPUs yet: the driver refuses "
                               "memory or copies; curb tries again");
                    pause_ms = std::min<std::uint64_t>(2 * pause_ms, 10'000);
                    break;
            }
            room.give_up();
        } else {
            pause_ms = 20;
            if (!once) note_room(true);
        }
        if (once) return false;
        sleep_asleep(pause_ms);
    }
}

}  // namespace curb::shim::nap
