#include "nap/nap.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "base/lifetime.hpp"
#include "base/waiting.hpp"
#include "blocks/applies.hpp"
#include "device/devices.hpp"
#include "device/wait_queue.hpp"
#include "driver/gate.hpp"
#include "host/clock.hpp"
#include "host/log.hpp"
#include "host/process_state.hpp"
#include "host/real_libc.hpp"
#include "limits/in_force.hpp"
#include "move/host_memory.hpp"
#include "nap/back.hpp"
#include "nap/one_nap.hpp"
#include "nap/state.hpp"
#include "nap/turns.hpp"
#include "policy/decisions/idle.hpp"
#include "policy/values/duration.hpp"
#include "policy/values/size.hpp"
#include "release/idle.hpp"
#include "threads/own_thread.hpp"
#include "threads/worker_signal.hpp"
#include "trace/trace.hpp"

namespace curb::shim::nap {

bool is_under_way() noexcept {
    return locked([](const State &state) { return state.phase != Phase::none; });
}

namespace {

void run() {
    {
        const own_thread::Awake awake;
        own_thread::outlive_stop();  // an exit handler of the program's or of a library's may end the nap
        try {
            OneNap().take();
        } catch (...) {
            OneNap::come_back_at_any_cost();
        }
    }
    const bool is_requested = locked([](State &state) {
        state.phase = Phase::none;
        state.is_deep = false;
        return state.is_requested;
    });
    if (is_requested) worker_signal::wake_up();
}

constinit process::Home home;  // a fork child inherits the handler, not the nap

// Looks up a function of libc at run time: each symbol that libcurb.so refers to costs time at every start of a
// program.
template <class Function>
Function *of_libc(const char *name) noexcept {
    return reinterpret_cast<Function *>(real::glibcs(name));
}

// Brings the process back at exit: the driver's own exit handler must not run while the driver has moved the process
// out, or while it is on its way. If there is no room for it for 5 s, ends the process here, where it holds no GPU
// memory. What curb has moved may stay out: its context is there.
void at_exit(int status, void *) noexcept {
    // No return takes so long, and a helper that hangs must not keep the process from its end.
    constexpr std::uint64_t kMostMs = 300'000, kPatienceMs = 5000;
    if (!home.is_here()) return;
    locked([](State &state) { state.process_ends = true; });
    const auto rests = [] {
        return locked([](const State &state) {
            return state.phase == Phase::none ||
                   (!state.is_deep &&
                    (state.phase == Phase::out || state.phase == Phase::staying_out || state.no_room_since_ms != 0));
        });
    };
    const auto has_no_room = [] {
        return locked([](const State &state) {
            return state.is_deep && state.no_room_since_ms != 0 && now_ms() - state.no_room_since_ms > kPatienceMs;
        });
    };
    poll_until([&] { return rests() || has_no_room() || own_thread::stopped(); }, kMostMs);
    if (rests()) return;
    of_libc<int(FILE *)>("fflush")(nullptr);
    syscall(SYS_exit_group, status);
}

enum class Why : std::uint8_t { idle, request, turn };
// May throw std::bad_alloc.
void begin(Why why) {
    // Registered after the exit handlers of curb's threads, so it runs before them.
    static const int registered = of_libc<int(void (*)(int, void *), void *)>("on_exit")(at_exit, nullptr);
    home.set();
    const bool may_begin = locked([&](State &state) {
        if (state.process_ends) return false;
        state.phase = Phase::begun;
        state.by_request = why == Why::request;
        state.by_turn = why == Why::turn;
        state.was_kept_out = is_kept_out(state);
        state.no_room_since_ms = 0;
        return true;
    });
    if (!may_begin || (registered == 0 && own_thread::start(run, "curb-nap"))) return;
    locked([](State &state) {
        state.phase = Phase::none;
        state.kept_out_until_ms = 0;
    });
    note_refused(registered != 0
                     ? "the process has no memory for an exit handler"
                     : "no thread could be started for it; its limit of processes (ulimit -u) or of address "
                       "space may be too low");
}

// ---- when ----

bool has_naps(const policy::SuspendPolicy &policy) noexcept {
    return policy.idle || policy.when_others_wait || policy.turn;
}

// True if the process can never leave its GPUs. Logs once why.
bool never_naps() {
    static const bool never = [] {
        const std::string why = why_never();
        if (!why.empty()) log::write(policy::LogLevel::info, "no naps: " + why);
        return !why.empty();
    }();
    return never;
}

// The present idle period. Only the worker uses it.
struct Period {
    policy::IdlePeriod idle{now_ms()};
    std::uint64_t sampled_ms = now_ms();
};

// Returns the idle time before the next attempt. Each refusal in a row doubles it, until it is an hour or more.
policy::Duration backed_off(policy::Duration idle) noexcept {
    constexpr policy::Duration kLongest = std::chrono::hours(1);
    for (int i = locked([](const State &state) { return state.refusals; }); i > 0 && idle < kLongest; --i) idle *= 2;
    return idle;
}

// True if the process has been idle for long enough. Calls NVML if it seems so, and each second.
bool is_due(Period &period, policy::Duration idle, policy::Duration beside) noexcept {
    const std::uint64_t now = now_ms();
    const auto due = [&] {
        return period.idle.due(now, backed_off(idle)) || (period.idle.due(now, backed_off(beside)) && others_wait());
    };
    if (now - period.sampled_ms >= idle::kSampleMs || due()) {
        if (const auto when = idle::seen_running(period.sampled_ms)) period.idle.used(*when);
        period.sampled_ms = now;
    }
    return due();
}

}  // namespace

std::string begin_soon() {
    if (gate::is_closed() && !is_under_way()) return "it is suspended already";
    locked([](State &state) {
        state.status.refused.clear();
        state.is_requested = state.was_requested = true;
    });
    worker_signal::wake_up();
    return {};
}

policy::Result<bool, std::string> leave_lightly(std::uint64_t lease_ms) {
    if (std::string why = blocks::why_not(); !why.empty()) return why;
    if (gate::is_closed() && !is_under_way()) return std::string("it is suspended already");
    enum class Seen : std::uint8_t { deep, out, under_way, none };
    const Seen seen = locked([=](State &state) {
        const bool is_out = state.phase == Phase::out || state.phase == Phase::staying_out;
        const bool is_called = state.phase == Phase::out && gate::waiting_since() != 0;
        const bool is_back = is_out && !gate::is_closed();  // its thread has not ended the nap yet
        if (is_called || is_back || state.phase == Phase::coming_back) return Seen::under_way;
        if (state.is_deep || state.phase == Phase::staying_out) return Seen::deep;
        state.kept_out_until_ms = now_ms() + lease_ms;
        if (state.phase == Phase::none) return state.is_requested ? Seen::under_way : Seen::none;
        state.was_kept_out = true;
        return state.phase == Phase::out ? Seen::out : Seen::under_way;
    });
    if (seen == Seen::deep) return std::string("the driver moves it for a nap");
    if (seen == Seen::none)
        if (std::string why = begin_soon(); !why.empty()) return why;
    return seen == Seen::out;
}

bool keep_out(std::uint64_t lease_ms, bool for_good, policy::Bytes moved) noexcept {
    bool begins = false;
    const auto all = locked([&](State &state) -> std::optional<policy::Bytes> {
        if (!is_kept_out(state) || (state.phase != Phase::out && state.phase != Phase::staying_out))
            return std::nullopt;
        if (state.kept_out_until_ms != State::kForGood)
            state.kept_out_until_ms = for_good ? State::kForGood : now_ms() + lease_ms;
        begins = for_good && std::exchange(state.phase, Phase::staying_out) == Phase::out;
        if (begins) {
            state.is_deep = moved != 0;
            state.status.is_light = moved == 0;
            state.status.deep.bytes = moved;
            state.status.bytes += moved;
            state.status.bytes_total += moved;
        }
        return state.status.bytes;
    });
    if (begins) gate::note_out(gate::For::client, *all, trace::back);
    if (begins && moved != 0) trace::out(moved, "suspend");
    return all.has_value();
}

namespace {

constexpr policy::Duration kNever = policy::Duration::max();

// Begins a nap if its time, or the turn's end, has come.
void begin_if_due(const policy::SuspendPolicy &policy, std::optional<Period> &period) {
    // A waiting request counts as use: out of its GPUs, the process would wait for itself to come back, and block
    // others.
    const bool is_used = gate::take_called() || gate::call_under_way() || wait_queue::any();
    turns::sample(is_used || gate::waiting_since() != 0);
    const bool begins_anew = locked([&](State &state) {
        if (is_used) state.refusals = 0;  // what prevented the last nap may be over
        return std::exchange(state.is_refused, false) || state.phase != Phase::none;
    });
    // An idle period begins when a nap, or a suspend, has ended, or when a nap was refused.
    if (!period || begins_anew || gate::is_closed())
        period.emplace();
    else if (turns::is_over())
        begin(Why::turn);
    else if (is_used || !devices::any_in_use())  // a process that holds nothing has nothing to move
        period->idle.used(now_ms());
    else if (is_due(*period, policy.idle.value_or(kNever), policy.when_others_wait.value_or(kNever)))
        begin(Why::idle);
}

std::uint64_t poll_interval_ms(const policy::SuspendPolicy &policy) {
    constexpr std::uint64_t kWhileKept = 1000;  // in which host memory may run short
    constexpr std::uint64_t kWithTurns = 50;
    const std::uint64_t next = policy::IdlePeriod::poll_interval_ms(
        std::min(policy.idle.value_or(kNever), policy.when_others_wait.value_or(kNever)));
    return std::min({next, policy.turn ? kWithTurns : next, move::kept().bytes == 0 ? next : kWhileKept});
}

}  // namespace

std::optional<std::uint64_t> poll() noexcept try {
    const auto take_request = [] {
        return locked(
            [](State &state) { return state.phase == Phase::none && std::exchange(state.is_requested, false); });
    };
    if (!gate::is_closed() && take_request()) begin(Why::request);
    auto &period = leaked<std::optional<Period>>();
    trim_host_memory();
    const policy::SuspendPolicy policy = in_force::snapshot()->policy.suspend;
    if (!has_naps(policy) || never_naps()) {
        period.reset();
        return std::nullopt;
    }
    begin_if_due(policy, period);
    return poll_interval_ms(policy);
} catch (...) {
    return policy::IdlePeriod::poll_interval_ms(kNever);
}

std::string why_not() noexcept try {
    std::string why = why_no_nap();
    return why.empty() ? why_not_deep() : why;
} catch (...) {
    return "no host memory";
}

bool stay_out() noexcept {
    const bool stays_out = locked([](State &state) {
        if (state.phase == Phase::staying_out) return true;
        if (state.phase != Phase::out || gate::waiting_since() != 0) return false;
        if (state.is_deep) state.phase = Phase::staying_out;
        return state.is_deep;
    });
    if (stays_out) gate::note_kept_out();
    return stays_out;
}

void end_soon() noexcept {
    const bool ends = locked([](State &state) {
        return std::exchange(state.kept_out_until_ms, 0) != 0 || (state.phase == Phase::out && !state.is_deep);
    });
    if (ends) gate::note_waiting();
}

void moved_out_by_command(policy::Bytes bytes) noexcept {
    gate::note_out(gate::For::client, bytes, trace::back);
    trace::out(bytes, "suspend");
}

std::optional<control::NapStatus> status() {
    const bool by_policy = has_naps(in_force::snapshot()->policy.suspend);
    const policy::Bytes kept = move::kept().bytes;
    const std::string never = why_never();
    return locked([&](const State &state) -> std::optional<control::NapStatus> {
        if (!by_policy && !state.was_requested) return std::nullopt;
        control::NapStatus now = state.status;
        now.kept = kept;
        now.illegal_address = blocks::has_seen_illegal_address();
        if (!never.empty())
            now.refused = never;
        else if (now.not_light.empty())
            now.not_light = blocks::why_not();
        // The gate opens when the process is back. The nap's thread goes on until its helper has ended.
        now.out =
            gate::is_closed() && (state.phase > Phase::leaving || (state.phase == Phase::leaving && now.is_light));
        now.leaving = gate::is_closed() && state.phase == Phase::leaving && !now.out;
        if (!now.out) now.since = now.no_room_since = 0;
        now.stays_out = now.out && state.phase == Phase::staying_out;
        return now;
    });
}

}  // namespace curb::shim::nap
