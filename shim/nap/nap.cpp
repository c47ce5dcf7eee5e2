#include "nap/nap.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <mutex>
#include <new>
#include <string>

#include "accounting/shared.hpp"
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

constinit std::atomic<bool> napping{false};         // a nap's thread runs
constinit std::atomic<bool> ending{false};          // exit() has begun
constinit std::atomic<std::uint64_t> called_ms{0};  // when the first call of the program began to wait; 0: none waits
// The phase of the nap. A call of the program and stay_out() both change `out`; the first one decides.
enum class Phase : std::uint8_t { in, out, coming_back, staying_out };
constinit std::atomic<Phase> phase{Phase::in};
bool change_from_out(Phase to) noexcept {
    Phase expected = Phase::out;
    return phase.compare_exchange_strong(expected, to, std::memory_order_acq_rel);
}
constinit std::atomic<int> refusals{0};  // in a row
constinit std::atomic<bool> refused_since_poll{false};
constinit std::atomic<bool> wanted{false}, was_wanted{false};  // set by begin_soon()
constinit std::atomic<bool> by_request{false};                 // begin_soon() requested the nap

// The last move: its cause and bytes, when the gate opened at the return, and how long the resume took.
enum class MovedOutBy : std::uint8_t { nothing, nap, command };
constinit std::atomic<MovedOutBy> moved_out_by{MovedOutBy::nothing};
constinit std::atomic<policy::Bytes> moved_out_bytes{0};
constinit std::atomic<std::uint64_t> opened_ms{0}, resume_took_ms{0};

// Runs when the gate opens: traces the return, if the process was out. Async-signal-safe.
void opened() noexcept {
    const MovedOutBy what = moved_out_by.exchange(MovedOutBy::nothing, std::memory_order_acq_rel);
    if (what == MovedOutBy::nothing) return;
    const std::uint64_t now = now_ms(), called = called_ms.load(std::memory_order_acquire),
                        resume = resume_took_ms.exchange(0, std::memory_order_acq_rel);
    opened_ms.store(now, std::memory_order_release);
    trace::back(moved_out_bytes.load(std::memory_order_relaxed),
                what == MovedOutBy::nap && called != 0 ? now - called : resume);
}

void note_out(MovedOutBy what, policy::Bytes bytes) noexcept {
    moved_out_bytes.store(bytes, std::memory_order_relaxed);
    resume_took_ms.store(0, std::memory_order_relaxed);
    gate::on_open(opened);
    moved_out_by.store(what, std::memory_order_release);
    trace::out(bytes, what == MovedOutBy::nap ? "nap" : "suspend");
}

struct Shared {
    std::mutex mutex;
    control::NapStatus status;
};
Shared &shared() noexcept { return leaked<Shared>(); }

template <class Change>
void note(Change change) {
    const std::scoped_lock lock(shared().mutex);
    change(shared().status);
}

void mark_back(control::NapStatus &now) noexcept {
    now.out = now.leaving = false;
    now.since = now.no_room_since = 0;
}
void note_in() { note(mark_back); }

// Ends an attempt without a nap: opens the gate, and doubles the time to the next attempt.
void refuse(const std::string &why) {
    gate::open(gate::For::nap);
    bool is_new = false;
    note([&](control::NapStatus &now) {
        is_new = now.refused != why;
        now.refused = why;
        now.leaving = false;
    });
    refusals.fetch_add(1, std::memory_order_relaxed);
    refused_since_poll.store(true, std::memory_order_release);
    log::write(is_new ? LogLevel::info : LogLevel::debug, "no nap now: " + why);
}

std::optional<CUprocessState> state_by_driver() noexcept {
    CUprocessState state{};
    const auto ask = [&] { return driver_behind_gate().cuCheckpointProcessGetState(getpid(), &state); };
    if (ask_twice(ask) != CUDA_SUCCESS) return std::nullopt;
    return state;
}

bool is_in_its_gpus() noexcept { return state_by_driver() == CU_PROCESS_STATE_RUNNING; }

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

// Returns why some calls would reach the driver while the process is out. Empty if none would.
std::string bypassing() {
    const auto found = bypasses();
    if (!found.empty()) return "calls of " + found.front().library + " would bypass curb (" + found.front().how + ")";
    return thunks::all_gated() ? "" : "the program has looked up more functions of the driver than curb has thunks for";
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

// The helper of a process that is out.
constinit std::atomic<const Helper *> mover{nullptr};
constinit std::atomic<std::uint64_t> no_room_since_ms{0};  // since when it has waited for room; 0: it does not wait
constinit std::atomic<int> callers{0};                     // threads in noted_call(), which may use `mover`
void wait_for_callers() noexcept {
    while (callers.load(std::memory_order_seq_cst) != 0) sleep_ms(1);
}
// While this lives, a call of the program tells `helper` to bring the process back.
class WithinReach : NoCopy {
  public:
    explicit WithinReach(const Helper &helper) noexcept {
        mover.store(&helper, std::memory_order_release);
        phase.store(Phase::out, std::memory_order_release);
    }
    ~WithinReach() {
        phase.store(Phase::in, std::memory_order_seq_cst);
        wait_for_callers();
    }
};

// Runs when a call of the program begins to wait. Tells the helper at once to bring the process back, without waiting
// for the nap's thread.
void noted_call() noexcept {
    std::uint64_t none = 0;
    called_ms.compare_exchange_strong(none, now_ms(), std::memory_order_acq_rel);
    callers.fetch_add(1, std::memory_order_seq_cst);
    // If it cannot be told, the nap's thread hangs up.
    if (change_from_out(Phase::coming_back)) static_cast<void>(mover.load(std::memory_order_acquire)->tell("back"));
    callers.fetch_sub(1, std::memory_order_release);
}

bool wants_back() noexcept { return called_ms.load(std::memory_order_acquire) != 0 || !gate::is_closed(); }

// Waits until a call of the program needs the process back, and brings it back. False if it stays out (stay_out()).
bool wait_and_come_back(Helper &helper) {
    std::string last;
    const auto read = [&](auto stop) {
        while (const auto line = helper.line(stop)) {
            if (*line != "waits" && *line != "comes") {
                last = *line;
                continue;
            }
            const bool waits = *line == "waits";
            no_room_since_ms.store(waits ? now_ms() : 0, std::memory_order_release);
            note([=](control::NapStatus &now) { now.no_room_since = waits ? control::unix_now() : 0; });
        }
    };
    read([] { return wants_back() || phase.load(std::memory_order_acquire) != Phase::out; });
    if (!change_from_out(Phase::coming_back) && phase.load(std::memory_order_acquire) == Phase::staying_out &&
        helper.tell("leave")) {
        helper.end();
        log::write(LogLevel::info, "the nap is a suspend now: calls of CUDA wait until curb resume");
        return false;
    }
    wait_for_callers();
    if (!helper.tell("back")) helper.hang_up();  // the call may have told it already
    read([] { return false; });
    helper.end();
    bring_back();
    const std::uint64_t since = called_ms.load(std::memory_order_acquire);
    const std::uint64_t end_ms = gate::is_closed() ? now_ms() : opened_ms.load(std::memory_order_acquire);
    const std::uint64_t waited_ms = since == 0 ? 0 : end_ms - std::min(end_ms, since);
    note([&](control::NapStatus &now) {
        now.waited_ms = waited_ms;
        now.waited_total_ms += waited_ms;
    });
    const std::string waited = since == 0 ? "" : ", and a call waited " + std::to_string(waited_ms) + " ms for its end";
    log::write(LogLevel::info, "the nap has ended" + waited + (last.empty() ? "" : ": " + last));
    return true;
}

// The most host memory that a nap may take, by the user's policy and by the ceiling.
struct HostMemory {
    std::string own, ceiling;
};
HostMemory host_memory() {
    const auto snapshot = process::snapshot();
    const auto text = [](const std::optional<policy::Size> &most) { return most ? policy::format(*most) : "100%"; };
    return {text(snapshot->policy.suspend.host_memory), text(snapshot->policy.host_memory_ceiling)};
}

bool holds_memory() noexcept { return std::any_of(devices::all().begin(), devices::all().end(), devices::in_use); }

// Takes one nap, on the thread curb-nap. The gate is open again when it returns, unless the process is then suspended.
void take_nap(const HostMemory &most) {
    called_ms.store(0, std::memory_order_seq_cst);
    // Read after the store: it may have erased the call by which at_exit() ends this nap.
    if (ending.load(std::memory_order_seq_cst)) return;
    no_room_since_ms.store(0, std::memory_order_relaxed);
    gate::on_wait(noted_call);
    // Ask before the gate closes: without an answer curb could not see later whether the process is back.
    if (!state_by_driver())
        return refuse("the driver cannot move processes out of their GPUs; that takes 570 or newer");
    if (const std::string why = Helper::why_none(); !why.empty()) return refuse(why);
    if (!holds_memory()) return refuse("it holds no memory of a GPU");
    switch (gate::close(gate::For::nap, kMove)) {
        case gate::Closing::closed: break;
        case gate::Closing::taken: return;  // a command moves the process
        case gate::Closing::uncounted:
            return refuse("the kernel has no membarrier, so it is not known which calls are under way");
    }
    if (const std::string why = why_not(); !why.empty()) return refuse(why);
    if (const std::string why = bypassing(); !why.empty()) return refuse(why);
    if (!poll_until([] { return gate::call_under_way() == nullptr; }, 100) || wait_queue::any()) {
        if (by_request.load(std::memory_order_relaxed)) return refuse("a call of CUDA is under way");
        return gate::open(gate::For::nap);  // it is not idle
    }
    Helper helper;
    note([](control::NapStatus &now) { now.leaving = true; });
    helper.start(
        {"suspend", "--nap", "--host-memory", most.own, "--host-memory", most.ceiling, std::to_string(getpid())});
    const auto first = helper.line();
    const auto bytes = first ? moved(*first) : std::nullopt;
    if (!bytes) {
        const bool has_run = helper.end() != Helper::kNotExecuted;
        bring_back();
        return refuse(has_run ? first.value_or("the command curb ended without a word") : Helper::kNone);
    }
    refusals.store(0, std::memory_order_relaxed);
    note_out(MovedOutBy::nap, *bytes);
    note([&](control::NapStatus &now) {
        now.out = true;
        now.leaving = false;
        now.since = control::unix_now();
        ++now.count;
        now.bytes = *bytes;
        now.bytes_total += *bytes;
        now.refused.clear();
    });
    log::write(LogLevel::info, "a nap begins: " + policy::format_human(*bytes) +
                                   " moved to host memory; the next call of CUDA ends it");
    const WithinReach until_back(helper);
    // End the lease: from here on another tool may bring the process back, and then a waiting call opens the gate.
    gate::close(gate::For::nap, std::chrono::milliseconds(0));
    const bool is_back = wait_and_come_back(helper);
    note_in();
    if (!is_back) return;
    gate::open(gate::For::nap);
    opened();  // the gate may have opened before note_out()
}

// Out of host memory: brings the process back from any state of a nap.
void come_back_at_any_cost() noexcept {
    for (;;) {
        try {
            bring_back();
            note_in();
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
            take_nap(host_memory());
        } catch (...) {
            come_back_at_any_cost();
        }
    }
    napping.store(false, std::memory_order_seq_cst);
    if (wanted.load(std::memory_order_seq_cst)) worker::wake_up();  // requested while this nap ended
}

constinit std::atomic<pid_t> naps_in{0};  // a fork child inherits the handler, not the nap

// Looks up a function of libc at run time: each symbol that libcurb.so refers to costs time at every start of a
// program.
template <class Function>
Function *of_libc(const char *name) noexcept {
    return reinterpret_cast<Function *>(real::glibcs(name));
}

// Brings the process back at exit: the driver's own exit handler must not run while the process is out of its GPUs or
// on its way. If there is no room for it for 5 s, ends the process here, where it holds no GPU memory.
void at_exit(int status, void *) noexcept {
    if (naps_in.load(std::memory_order_relaxed) != getpid()) return;
    ending.store(true, std::memory_order_seq_cst);
    if (!napping.load(std::memory_order_seq_cst)) return;
    noted_call();
    const auto is_over = [] { return !napping.load(std::memory_order_acquire); };
    const auto has_no_room = [] {
        constexpr std::uint64_t kPatienceMs = 5000;
        const std::uint64_t since = no_room_since_ms.load(std::memory_order_acquire);
        return since != 0 && now_ms() - since > kPatienceMs;
    };
    // No return takes so long, and a helper that hangs must not keep the process from its end.
    constexpr std::uint64_t kMostMs = 300'000;
    poll_until([&] { return is_over() || has_no_room() || own_thread::stopped(); }, kMostMs);
    if (is_over()) return;
    of_libc<int(FILE *)>("fflush")(nullptr);
    syscall(SYS_exit_group, status);
}

void begin(bool requested) noexcept {
    // Registered after the exit handlers of curb's threads, so it runs before them.
    static const int registered = of_libc<int(void (*)(int, void *), void *)>("on_exit")(at_exit, nullptr);
    if (registered != 0) return;
    by_request.store(requested, std::memory_order_relaxed);
    naps_in.store(getpid(), std::memory_order_relaxed);
    napping.store(true, std::memory_order_seq_cst);
    if (ending.load(std::memory_order_seq_cst)) {
        napping.store(false, std::memory_order_release);
        return;
    }
    if (!own_thread::start(run, "curb-nap")) napping.store(false, std::memory_order_release);
}

struct State {
    policy::IdlePeriod period{now_ms()};
    std::uint64_t sampled_ms = now_ms();
};

// Returns the idle time before the next attempt. Each refusal in a row doubles it, until it is an hour or more.
policy::Duration backed_off(policy::Duration idle) noexcept {
    constexpr policy::Duration kLongest = std::chrono::hours(1);
    policy::Duration out = idle;
    for (int i = refusals.load(std::memory_order_relaxed); i > 0 && out < kLongest; --i) out *= 2;
    return out;
}

bool has_naps(const policy::SuspendPolicy &policy) noexcept { return policy.idle || policy.when_others_wait; }

bool others_wait() noexcept {
    return std::any_of(devices::all().begin(), devices::all().end(), [](const Device &device) {
        return devices::in_use(device) && wait_queue::others_wait(wait_queue::Order::device, device);
    });
}

}  // namespace

std::string begin_soon() {
    if (gate::is_closed() && !napping.load(std::memory_order_seq_cst)) return "it is suspended already";
    note([](control::NapStatus &now) { now.refused.clear(); });
    was_wanted.store(true, std::memory_order_release);
    wanted.store(true, std::memory_order_seq_cst);
    worker::wake_up();
    return {};
}

std::optional<std::uint64_t> poll() noexcept try {
    if (wanted.load(std::memory_order_acquire) && !gate::is_closed() && !napping.load(std::memory_order_seq_cst)) {
        wanted.store(false, std::memory_order_release);
        begin(true);
    }
    auto &state = leaked<std::optional<State>>();
    const policy::SuspendPolicy policy = process::snapshot()->policy.suspend;
    if (!has_naps(policy)) {
        state.reset();
        return std::nullopt;
    }
    const bool is_used = gate::take_called() || gate::call_under_way() || wait_queue::any();
    if (is_used) refusals.store(0, std::memory_order_relaxed);  // what prevented the last nap may be over
    constexpr policy::Duration kNever = policy::Duration::max();
    const policy::Duration idle = policy.idle.value_or(kNever), beside = policy.when_others_wait.value_or(kNever);
    const std::uint64_t next = policy::IdlePeriod::poll_interval_ms(std::min(idle, beside)), now = now_ms();
    // An idle period begins when a nap, or a suspend, has ended, or when a nap was refused.
    if (!state || napping.load(std::memory_order_acquire) || gate::is_closed() ||
        refused_since_poll.exchange(false, std::memory_order_acq_rel)) {
        state.emplace();
        return next;
    }
    // A waiting request counts as use: out of its GPUs, the process would wait for itself to come back, and block
    // others. A process that holds nothing has nothing to move.
    if (is_used || !holds_memory()) state->period.used(now);
    const auto due = [&] {
        return state->period.due(now, backed_off(idle)) ||
               (state->period.due(now, backed_off(beside)) && others_wait());
    };
    if (now - state->sampled_ms >= idle::kSampleMs || due()) {
        if (const auto when = idle::seen_running(state->sampled_ms)) state->period.used(*when);
        state->sampled_ms = now;
    }
    if (!due()) return next;
    begin(false);
    return next;
} catch (...) {
    return policy::IdlePeriod::poll_interval_ms(policy::Duration::max());
}

std::string why_not() noexcept try {
    if (captures::any()) return "a graph capture is under way";
    if (shared::any())
        return "it shares GPU memory with other processes (CUDA IPC or exported handles), and the driver cannot move "
               "such "
               "memory";
    if (shared::any_event()) return "it shares events with other processes (CUDA IPC), which curb does not move";
    if (shared::any_external())
        return "it has imported memory of a graphics library or a device (cuImportExternalMemory), which curb does not "
               "move";
    return {};
} catch (...) {
    return "no host memory";
}

bool stay_out() noexcept {
    if (!change_from_out(Phase::staying_out)) return false;
    MovedOutBy nap = MovedOutBy::nap;
    moved_out_by.compare_exchange_strong(nap, MovedOutBy::command, std::memory_order_acq_rel);
    return true;
}

void moved_out_by_command(policy::Bytes bytes) noexcept { note_out(MovedOutBy::command, bytes); }
void brought_back(std::uint64_t took_ms) noexcept { resume_took_ms.store(took_ms, std::memory_order_release); }

std::optional<control::NapStatus> status() {
    if (!was_wanted.load(std::memory_order_acquire) && !has_naps(process::snapshot()->policy.suspend))
        return std::nullopt;
    const std::scoped_lock lock(shared().mutex);
    control::NapStatus now = shared().status;
    // The gate opens when the process is back. The nap's thread notes that only when its helper has ended.
    if (!gate::is_closed()) mark_back(now);
    return now;
}

}  // namespace curb::shim::nap
