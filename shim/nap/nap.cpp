#include "nap/nap.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "accounting/shared.hpp"
#include "base/guarded.hpp"
#include "base/lifetime.hpp"
#include "base/waiting.hpp"
#include "contexts/captures.hpp"
#include "device/devices.hpp"
#include "device/wait_queue.hpp"
#include "driver/bypass.hpp"
#include "driver/driver.hpp"
#include "driver/gate.hpp"
#include "driver/thunks/thunks.hpp"
#include "host/clock.hpp"
#include "host/log.hpp"
#include "host/process_state.hpp"
#include "host/real_libc.hpp"
#include "limits/in_force.hpp"
#include "nap/helper.hpp"
#include "policy/decisions/idle.hpp"
#include "policy/values/duration.hpp"
#include "policy/values/size.hpp"
#include "release/idle.hpp"
#include "threads/own_thread.hpp"
#include "threads/worker_signal.hpp"
#include "trace/trace.hpp"

namespace curb::shim::nap {
namespace {

using policy::LogLevel;

// The gate's lease during a move; longer than any move takes. Until it is over, a waiting call does not ask the driver
// whether the process is running, and so does not open the gate.
constexpr std::chrono::minutes kMove{60};

// Not `none`: the thread curb-nap runs. A call of the program and stay_out() both end `out`; the first one decides.
enum class Phase : std::uint8_t { none, begun, leaving, out, coming_back, staying_out };

struct Nap {
    Phase phase = Phase::none;
    bool is_requested = false, was_requested = false;  // by begin_soon()
    bool by_request = false;                           // this nap
    bool process_ends = false;                         // exit() has begun
    int refusals = 0;                                  // in a row
    bool is_refused = false;                           // since the last poll()
    std::uint64_t no_room_since_ms = 0;  // since when it has waited for room to come back; 0: it does not wait
    control::NapStatus status;           // without `out` and `leaving`, which the phase shows
};
// Runs `act` with the state of naps, under its lock.
template <class Act>
auto locked(Act act) {
    return leaked<Guarded<Nap>>().locked(act);
}
bool is_under_way() noexcept {
    return locked([](const Nap &nap) { return nap.phase != Phase::none; });
}

std::optional<CUprocessState> state_by_driver() noexcept {
    CUprocessState state{};
    const auto ask = [&] { return driver_behind_gate().cuCheckpointProcessGetState(getpid(), &state); };
    if (ask_twice(ask) != CUDA_SUCCESS) return std::nullopt;
    return state;
}

bool is_in_its_gpus() noexcept { return state_by_driver() == CU_PROCESS_STATE_RUNNING; }

bool holds_memory() noexcept { return std::any_of(devices::all().begin(), devices::all().end(), devices::in_use); }

// ---- back ----

// Returns when the driver says that the process is in its GPUs, whatever a helper says. Brings it back if needed, by as
// many helpers as it takes. Waits for room without limit.
void bring_back() {
    const std::string pid = std::to_string(getpid());
    for (std::uint64_t pause_ms = 100; !is_in_its_gpus(); pause_ms = std::min<std::uint64_t>(2 * pause_ms, 10'000)) {
        Helper helper;
        std::string said;
        if (helper.start({"resume", "--wait", "24h", pid}))
            while (const auto line = helper.line()) said = *line;
        if (helper.end() == 0 && is_in_its_gpus()) return;
        if (said.empty()) said = Helper::why_none();
        log::write(LogLevel::error, "this process cannot come back to its GPUs yet: " + said);
        const own_thread::Asleep asleep;
        sleep_ms(pause_ms);
    }
}

// The way back of a process that is out: waits until a call of the program needs it, and brings it back.
class Return : NoCopy {
  public:
    explicit Return(Helper &helper) noexcept : helper_(helper) {}

    // False if the process stays out (stay_out()).
    bool run() {
        wait_for_call();
        const bool stays_out = locked([](Nap &nap) {
            if (nap.phase == Phase::out) nap.phase = Phase::coming_back;
            return nap.phase == Phase::staying_out;
        });
        if (stays_out && helper_.tell("leave")) {
            helper_.end();
            log::write(LogLevel::info, "the nap is a suspend now: calls of CUDA wait until curb resume");
            return false;
        }
        if (!helper_.tell("back")) {
            read_lines();  // of a helper that has ended
            helper_.hang_up();
        }
        while (const auto line = helper_.line()) take(*line);
        helper_.end();
        bring_back();
        note_back();
        return true;
    }

  private:
    void wait_for_call() {
        const auto may_stay = [] {
            return locked([](const Nap &nap) { return nap.phase == Phase::out && !nap.process_ends; });
        };
        while (may_stay() && gate::waiting_since() == 0 && gate::is_closed() && !helper_.has_closed()) {
            read_lines();
            const own_thread::Asleep asleep;
            gate::sleep_until_called(100);
        }
    }

    void read_lines() {
        while (const auto line = helper_.line_now()) take(*line);
    }

    void take(const std::string &line) {
        if (line != "waits" && line != "comes") {
            last_ = line;
            return;
        }
        const bool waits = line == "waits";
        locked([&](Nap &nap) {
            nap.no_room_since_ms = waits ? now_ms() : 0;
            nap.status.no_room_since = waits ? control::unix_now() : 0;
        });
    }

    void note_back() {
        const auto waited_ms = gate::waited_ms();
        locked([&](Nap &nap) {
            nap.status.waited_ms = waited_ms.value_or(0);
            nap.status.waited_total_ms += waited_ms.value_or(0);
        });
        const std::string waited =
            waited_ms ? ", and a call waited " + std::to_string(*waited_ms) + " ms for its end" : "";
        log::write(LogLevel::info, "the nap has ended" + waited + (last_.empty() ? "" : ": " + last_));
    }

    Helper &helper_;
    std::string last_;  // what the helper said last
};

// ---- out ----

// One attempt to leave the GPUs, on the thread curb-nap.
struct Leaving {
    // The most host memory that the nap may take, by the user's policy and by the ceiling.
    std::string host_memory, ceiling;
    Helper helper{};
};

// A step out. Returns nullopt if the next step may follow, else why there is no nap. An empty text is no refusal: the
// process is used again, or a command moves it.
using Step = std::optional<std::string> (*)(Leaving &);

std::optional<std::string> unless_empty(std::string why) {
    return why.empty() ? std::nullopt : std::optional(std::move(why));
}

// Asks before the gate closes: without an answer of the driver curb could not see later whether the process is back.
std::optional<std::string> prepare(Leaving & /*now*/) {
    if (!state_by_driver()) return "the driver cannot move processes out of their GPUs; that takes 570 or newer";
    if (std::string why = Helper::why_none(); !why.empty()) return why;
    if (!holds_memory()) return "it holds no memory of a GPU";
    return std::nullopt;
}

// Returns why some calls would reach the driver while the process is out. Empty if none would.
std::string bypassing() {
    const auto found = bypasses();
    if (!found.empty()) return "calls of " + found.front().library + " would bypass curb (" + found.front().how + ")";
    return thunks::all_gated() ? "" : "the program has looked up more functions of the driver than curb has thunks for";
}

std::optional<std::string> close_gate(Leaving & /*now*/) {
    switch (gate::close(gate::For::nap, kMove)) {
        case gate::Closing::closed: break;
        case gate::Closing::taken: return "";
        case gate::Closing::uncounted:
            return "the kernel has no membarrier, so it is not known which calls are under way";
    }
    if (std::string why = why_not(); !why.empty()) return why;
    return unless_empty(bypassing());
}

std::optional<std::string> wait_for_calls(Leaving & /*now*/) {
    if (poll_until([] { return gate::call_under_way() == nullptr; }, 100) && !wait_queue::any()) return std::nullopt;
    return locked([](const Nap &nap) { return nap.by_request; }) ? "a call of CUDA is under way" : "";
}

// Returns the bytes that the helper has moved, from its line "out 2147483648". nullopt for another line.
std::optional<policy::Bytes> moved(const std::string &line) {
    constexpr std::string_view kOut = "out ";
    policy::Bytes bytes = 0;
    if (!line.starts_with(kOut) ||
        std::from_chars(line.data() + kOut.size(), line.data() + line.size(), bytes).ec != std::errc())
        return std::nullopt;
    return bytes;
}

// The driver moves what the process holds, by the helper.
std::optional<std::string> move_out(Leaving &now) {
    locked([](Nap &nap) { nap.phase = Phase::leaving; });
    now.helper.start(
        {"suspend", "--nap", "--host-memory", now.host_memory, "--host-memory", now.ceiling, std::to_string(getpid())});
    const auto first = now.helper.line();
    const auto bytes = first ? moved(*first) : std::nullopt;
    if (!bytes) {
        const bool has_run = now.helper.end() != Helper::kNotExecuted;
        bring_back();
        return has_run ? first.value_or("the command curb ended without a word") : Helper::kNone;
    }
    gate::note_out(gate::For::nap, *bytes, trace::back);
    trace::out(*bytes, "nap");
    locked([&](Nap &nap) {
        nap.phase = Phase::out;
        nap.refusals = 0;
        nap.status.since = control::unix_now();
        ++nap.status.count;
        nap.status.bytes = *bytes;
        nap.status.bytes_total += *bytes;
        nap.status.refused.clear();
    });
    log::write(LogLevel::info, "a nap begins: " + policy::format_human(*bytes) +
                                   " moved to host memory; the next call of CUDA ends it");
    return std::nullopt;
}

constexpr Step kLeaving[] = {prepare, close_gate, wait_for_calls, move_out};

// Ends an attempt without a nap: opens the gate. A refusal doubles the time to the next attempt.
void stop(const std::string &why) {
    gate::open(gate::For::nap);
    if (why.empty()) return;
    const bool is_new = locked([&](Nap &nap) {
        ++nap.refusals;
        nap.is_refused = true;
        return std::exchange(nap.status.refused, why) != why;
    });
    log::write(is_new ? LogLevel::info : LogLevel::debug, "no nap now: " + why);
}

// Takes one nap, on the thread curb-nap. The gate is open again when it returns, unless the process is then suspended.
void take_nap() {
    Leaving now;
    {
        const auto snapshot = in_force::snapshot();
        const auto text = [](const std::optional<policy::Size> &most) { return most ? policy::format(*most) : "100%"; };
        now.host_memory = text(snapshot->policy.suspend.host_memory);
        now.ceiling = text(snapshot->policy.host_memory_ceiling);
    }
    for (const Step step : kLeaving)
        if (const auto why = step(now)) return stop(*why);
    // End the lease: from here on another tool may bring the process back, and then a waiting call opens the gate.
    gate::close(gate::For::nap, std::chrono::milliseconds(0));
    if (!Return(now.helper).run()) return;
    gate::open(gate::For::nap);
    gate::note_back();  // a client may have closed the gate again
}

// Out of host memory: brings the process back from any state of a nap.
void come_back_at_any_cost() noexcept {
    for (;;) {
        try {
            bring_back();
            return gate::open(gate::For::nap);
        } catch (...) {
            sleep_ms(100);
        }
    }
}

void run() {
    {
        const own_thread::Awake awake;
        try {
            take_nap();
        } catch (...) {
            come_back_at_any_cost();
        }
    }
    const bool is_requested = locked([](Nap &nap) {
        nap.phase = Phase::none;
        return nap.is_requested;
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

// Brings the process back at exit: the driver's own exit handler must not run while the process is out of its GPUs or
// on its way. If there is no room for it for 5 s, ends the process here, where it holds no GPU memory.
void at_exit(int status, void *) noexcept {
    // No return takes so long, and a helper that hangs must not keep the process from its end.
    constexpr std::uint64_t kMostMs = 300'000, kPatienceMs = 5000;
    if (!home.is_here()) return;
    locked([](Nap &nap) { nap.process_ends = true; });
    if (!is_under_way()) return;
    gate::note_waiting();
    const auto has_no_room = [] {
        return locked(
            [](const Nap &nap) { return nap.no_room_since_ms != 0 && now_ms() - nap.no_room_since_ms > kPatienceMs; });
    };
    poll_until([&] { return !is_under_way() || has_no_room() || own_thread::stopped(); }, kMostMs);
    if (!is_under_way()) return;
    of_libc<int(FILE *)>("fflush")(nullptr);
    syscall(SYS_exit_group, status);
}

void begin(bool by_request) noexcept {
    // Registered after the exit handlers of curb's threads, so it runs before them.
    static const int registered = of_libc<int(void (*)(int, void *), void *)>("on_exit")(at_exit, nullptr);
    if (registered != 0) return;
    home.set();
    const bool may_begin = locked([&](Nap &nap) {
        if (nap.process_ends) return false;
        nap.phase = Phase::begun;
        nap.by_request = by_request;
        nap.no_room_since_ms = 0;
        return true;
    });
    if (may_begin && !own_thread::start(run, "curb-nap")) locked([](Nap &nap) { nap.phase = Phase::none; });
}

// ---- when ----

bool has_naps(const policy::SuspendPolicy &policy) noexcept { return policy.idle || policy.when_others_wait; }

bool others_wait() noexcept {
    return std::any_of(devices::all().begin(), devices::all().end(), [](const Device &device) {
        return devices::in_use(device) && wait_queue::others_wait(wait_queue::Order::device, device);
    });
}

// The present idle period. Only the worker uses it.
struct Period {
    policy::IdlePeriod idle{now_ms()};
    std::uint64_t sampled_ms = now_ms();
};

// Returns the idle time before the next attempt. Each refusal in a row doubles it, until it is an hour or more.
policy::Duration backed_off(policy::Duration idle) noexcept {
    constexpr policy::Duration kLongest = std::chrono::hours(1);
    for (int i = locked([](const Nap &nap) { return nap.refusals; }); i > 0 && idle < kLongest; --i) idle *= 2;
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
    locked([](Nap &nap) {
        nap.status.refused.clear();
        nap.is_requested = nap.was_requested = true;
    });
    worker_signal::wake_up();
    return {};
}

std::optional<std::uint64_t> poll() noexcept try {
    const auto take_request = [] {
        return locked([](Nap &nap) { return nap.phase == Phase::none && std::exchange(nap.is_requested, false); });
    };
    if (!gate::is_closed() && take_request()) begin(true);
    auto &period = leaked<std::optional<Period>>();
    const policy::SuspendPolicy policy = in_force::snapshot()->policy.suspend;
    if (!has_naps(policy)) {
        period.reset();
        return std::nullopt;
    }
    constexpr policy::Duration kNever = policy::Duration::max();
    const policy::Duration idle = policy.idle.value_or(kNever), beside = policy.when_others_wait.value_or(kNever);
    // A waiting request counts as use: out of its GPUs, the process would wait for itself to come back, and block
    // others.
    const bool is_used = gate::take_called() || gate::call_under_way() || wait_queue::any();
    const bool begins_anew = locked([&](Nap &nap) {
        if (is_used) nap.refusals = 0;  // what prevented the last nap may be over
        return std::exchange(nap.is_refused, false) || nap.phase != Phase::none;
    });
    // An idle period begins when a nap, or a suspend, has ended, or when a nap was refused.
    if (!period || begins_anew || gate::is_closed())
        period.emplace();
    else if (is_used || !holds_memory())  // a process that holds nothing has nothing to move
        period->idle.used(now_ms());
    else if (is_due(*period, idle, beside))
        begin(false);
    return policy::IdlePeriod::poll_interval_ms(std::min(idle, beside));
} catch (...) {
    return policy::IdlePeriod::poll_interval_ms(policy::Duration::max());
}

std::string why_not() noexcept try {
    if (captures::any()) return "a graph capture is under way";
    if (shared::any())
        return "it shares GPU memory with other processes (CUDA IPC or exported handles), and the driver cannot move "
               "such memory";
    if (shared::any_event()) return "it shares events with other processes (CUDA IPC), which curb does not move";
    if (shared::any_external())
        return "it has imported memory of a graphics library or a device (cuImportExternalMemory), which curb does not "
               "move";
    return {};
} catch (...) {
    return "no host memory";
}

bool stay_out() noexcept {
    const bool stays_out = locked([](Nap &nap) {
        if (nap.phase != Phase::out || gate::waiting_since() != 0) return false;
        nap.phase = Phase::staying_out;
        return true;
    });
    if (stays_out) gate::note_kept_out();
    return stays_out;
}

void moved_out_by_command(policy::Bytes bytes) noexcept {
    gate::note_out(gate::For::client, bytes, trace::back);
    trace::out(bytes, "suspend");
}

std::optional<control::NapStatus> status() {
    const bool by_policy = has_naps(in_force::snapshot()->policy.suspend);
    return locked([&](const Nap &nap) -> std::optional<control::NapStatus> {
        if (!by_policy && !nap.was_requested) return std::nullopt;
        control::NapStatus now = nap.status;
        // The gate opens when the process is back. The nap's thread goes on until its helper has ended.
        now.leaving = nap.phase == Phase::leaving && gate::is_closed();
        now.out = nap.phase > Phase::leaving && gate::is_closed();
        if (!now.out) now.since = now.no_room_since = 0;
        return now;
    });
}

}  // namespace curb::shim::nap
