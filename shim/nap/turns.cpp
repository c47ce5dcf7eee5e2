#include "nap/turns.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "accounting/vmm.hpp"
#include "base/guarded.hpp"
#include "blocks/applies.hpp"
#include "device/sharers.hpp"
#include "device/wait_queue.hpp"
#include "driver/gate.hpp"
#include "host/clock.hpp"
#include "limits/in_force.hpp"
#include "nap/state.hpp"
#include "policy/decisions/turns.hpp"

namespace curb::shim::turns {
namespace {

using policy::Duration;
using std::chrono::milliseconds;

struct State {
    std::uint64_t since_ms = 0;       // of this turn; 0: the process holds no memory of a GPU
    control::UnixMs since = 0;        // the same by the clock of all
    control::UnixMs waits_since = 0;  // a request of this process, for room on a GPU; 0: none waits
    std::uint64_t turns_served = 0;
    std::uint64_t tries_again_ms = 0;
    unsigned refusals = 0;   // in a row
    bool is_answer = false;  // others have left for this turn before the end of theirs

    std::uint64_t sampled_ms = now_ms();
    policy::turns::Seconds seconds = policy::turns::kAllBusy;
    std::uint64_t second_ms = now_ms();  // when the present second began
    bool is_busy = false;                // in it
    Duration lately{};

    vmm::ByDevice movable{};
    std::uint64_t movable_ms = 0;  // when it was counted

    Duration out{}, back{};  // what the last moves took
    control::TurnStatus status;

    void begin() noexcept {
        since_ms = now_ms();
        since = control::unix_now();
        is_answer = policy::turns::is_seldom_busy(seconds);
        ++status.count;
    }
    [[nodiscard]] Duration length(Duration turn) const noexcept {
        return policy::turns::length(turn, out + back, is_answer);
    }
    [[nodiscard]] control::UnixMs ends(Duration turn) const noexcept {
        return policy::turns::end(since, length(turn), waits_since);
    }
    // `ms`: a request has waited so long; 0: none waits.
    void note_wait(std::uint64_t ms) noexcept {
        constexpr control::UnixMs kAlike = 50;  // two readings of the clocks
        const control::UnixMs now = ms == 0 ? 0 : control::unix_now() - static_cast<control::UnixMs>(ms);
        if (std::abs(now - waits_since) > kAlike) waits_since = now;
    }
};
template <class Act>
auto locked(Act act) {
    return leaked<Guarded<State>>().locked(act);
}

// nullopt: the process takes no turns.
std::optional<Duration> turn() noexcept {
    const auto now = in_force::snapshot();
    return blocks::takes_turns(now->policy.suspend) ? now->policy.suspend.turn : std::nullopt;
}

// True if its memory is out of the GPUs, or not all of it has come back: by a turn, a nap or a command.
bool is_out() noexcept {
    return nap::locked([](const nap::State &state) { return state.phase > nap::Phase::leaving; });
}

// Counts at most once a second: a program may have tens of thousands of blocks.
vmm::ByDevice movable() {
    constexpr std::uint64_t kAgainMs = 1000;
    const auto known = locked([](const State &state) {
        return now_ms() - state.movable_ms < kAgainMs ? std::optional(state.movable) : std::nullopt;
    });
    if (known) return *known;
    const vmm::ByDevice counted = vmm::movable_bytes();
    return locked([&](State &state) {
        state.movable_ms = now_ms();
        return state.movable = counted;
    });
}

// True if a call that is under way may be uncounted: it began before all were.
bool may_miss_calls() noexcept {
    constexpr std::uint64_t kLongestCallMs = 10'000;
    const std::uint64_t since = gate::counts_all_since();
    return since == 0 || now_ms() - since < kLongestCallMs;
}

// True if the process leaves for the first one that lacks room on this device.
bool leaves(Device &device, Bytes movable, control::UnixMs ends) {
    const auto free = device.meter.free();
    if (movable == 0 || !free || !wait_queue::places()) return false;
    const auto lacking = control::Ticket::first_lacking(*wait_queue::places(), device.meter.uuid(), *free);
    const bool is_own = lacking && lacking->process.pid == getpid() && lacking->owner == geteuid() &&
                        lacking->pid_namespace == control::text_link::own_pid_namespace();
    if (!lacking || is_own) return false;
    const policy::turns::Runner self{static_cast<std::uint64_t>(getpid()), ends, movable};
    return policy::turns::leaves(self, sharers::others(device, &*lacking),
                                 {lacking->missing, lacking->is_seldom_busy, lacking->waits}, control::unix_now());
}

}  // namespace

std::optional<control::InTurns> in_turns(const Device &device) noexcept {
    const auto now = in_force::snapshot();
    const auto length = turn();
    if (!length) return std::nullopt;
    const Bytes keeps_free = now->of(device.ordinal).terms.growth.keep_free;
    return locked([&](const State &state) {
        return control::InTurns{state.lately, keeps_free, policy::turns::is_seldom_busy(state.seconds),
                                state.length(*length)};
    });
}

void post(const Device &device, control::board::Gpu &gpu) {
    const auto length = turn();
    if (!length) return;
    const Bytes bytes = is_out() ? 0 : movable()[static_cast<std::size_t>(device.ordinal)];
    constexpr Duration kStep = std::chrono::seconds(5);  // so that the file does not change for this alone
    locked([&](const State &state) {
        gpu.turn = control::board::Gpu::Turn{bytes, state.since == 0 ? 0 : state.ends(*length)};
        gpu.lately = state.lately / kStep * kStep;
    });
}

void sample(bool busy) noexcept {
    const auto length = turn();
    const bool takes_turns = length.has_value(), out = is_out();
    const bool holds = devices::any_in_use();
    const std::uint64_t served = wait_queue::renew_claims(), waits_ms = wait_queue::longest_wait_ms();
    const bool ends_claims = locked([&](State &state) {
        const std::uint64_t now = now_ms();
        const auto passed = milliseconds(now - std::exchange(state.sampled_ms, now));
        state.lately = policy::turns::lately(state.lately, passed, holds && !out);
        state.is_busy = state.is_busy || busy;
        state.note_wait(waits_ms);
        constexpr std::uint64_t kSecond = 1000;
        for (; now - state.second_ms >= kSecond; state.second_ms += kSecond) {
            state.seconds = policy::turns::after_second(state.seconds, state.is_busy);
            state.is_busy = false;
        }
        if (!takes_turns || !holds) {
            state.since_ms = 0;
            state.since = 0;
            return true;
        }
        const bool is_served = std::exchange(state.turns_served, served) != served;
        if (is_served || state.since_ms == 0) state.begin();
        return out || now - state.since_ms >= static_cast<std::uint64_t>(state.length(*length).count());
    });
    if (ends_claims) wait_queue::end_claims(served);
}

bool is_over() {
    const auto length = turn();
    if (!length || is_out() || may_miss_calls()) return false;
    const auto ends = locked([&](const State &state) -> std::optional<control::UnixMs> {
        if (state.since_ms == 0 || now_ms() < state.tries_again_ms) return std::nullopt;
        return state.ends(*length);
    });
    if (!ends) return false;
    const auto others_wait = [](const Device &device) {
        return devices::in_use(device) && wait_queue::others_wait(wait_queue::Order::device, device);
    };
    if (std::none_of(devices::all().begin(), devices::all().end(), others_wait)) return false;
    const vmm::ByDevice bytes = movable();
    return std::any_of(devices::all().begin(), devices::all().end(), [&](Device &device) {
        return others_wait(device) && leaves(device, bytes[static_cast<std::size_t>(device.ordinal)], *ends);
    });
}

// Each refusal in a row doubles the pause, up to a minute: an attempt may hold the program up for seconds.
void note_refused() noexcept {
    constexpr std::uint64_t kAgainMs = 2000;
    constexpr unsigned kDoubled = 5;
    locked([](State &state) {
        state.tries_again_ms = now_ms() + (kAgainMs << state.refusals);
        if (state.refusals < kDoubled) ++state.refusals;
    });
}

void note_out(std::uint64_t took_ms) noexcept {
    wait_queue::end_claims();
    locked([=](State &state) {
        state.out = milliseconds(took_ms);
        state.refusals = 0;
        state.status.moved_ms += took_ms;
    });
}

void note_back(std::optional<std::uint64_t> took_ms) noexcept {
    locked([=](State &state) {
        if (took_ms) state.back = milliseconds(*took_ms);
        state.status.moved_ms += took_ms.value_or(0);
        state.begin();
    });
}

std::optional<control::TurnStatus> status() {
    const auto length = turn();
    if (!length) return std::nullopt;
    const bool out = is_out();
    return locked([&](const State &state) {
        control::TurnStatus now = state.status;
        now.length_ms = static_cast<std::uint64_t>(state.length(*length).count());
        now.since = out ? 0 : state.since;
        return now;
    });
}

}  // namespace curb::shim::turns
