#include "nap/one_nap.hpp"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>

#include "accounting/shared.hpp"
#include "base/waiting.hpp"
#include "blocks/applies.hpp"
#include "contexts/captures.hpp"
#include "control/host_room.hpp"
#include "device/activity.hpp"
#include "device/devices.hpp"
#include "device/wait_queue.hpp"
#include "driver/bypass.hpp"
#include "driver/driver.hpp"
#include "driver/gate.hpp"
#include "driver/thunks/thunks.hpp"
#include "host/clock.hpp"
#include "host/log.hpp"
#include "limits/in_force.hpp"
#include "move/move.hpp"
#include "nap/back.hpp"
#include "nap/state.hpp"
#include "nap/turns.hpp"
#include "policy/decisions/move.hpp"
#include "policy/values/size.hpp"
#include "threads/own_thread.hpp"
#include "trace/trace.hpp"

namespace curb::shim::nap {
namespace {

using policy::Bytes;
using policy::LogLevel;
using std::chrono::milliseconds;

// The gate's lease during a move; longer than any move takes. Until it is over, a waiting call does not ask the driver
// whether the process is running, and so does not open the gate.
constexpr std::chrono::minutes kMove{60};

std::uint64_t ms_since(std::chrono::steady_clock::time_point begin) noexcept {
    return static_cast<std::uint64_t>(
        std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - begin).count());
}

bool ends() {
    return locked([](const State &state) { return state.process_ends; });
}

// True if a call of the program ends the nap.
bool is_called() {
    return gate::waiting_since() != 0 && !locked([](const State &state) { return is_kept_out(state); });
}

// "17.3 GiB/s"
std::string rate(Bytes bytes, std::uint64_t ms) {
    return policy::format_human(bytes * 1000 / std::max<std::uint64_t>(ms, 1)) + "/s";
}

// Returns why some calls would reach the driver while the process is out. Empty if none would.
std::string bypassing() {
    const auto found = bypasses();
    if (!found.empty()) return "calls of " + found.front().library + " would bypass curb (" + found.front().how + ")";
    return thunks::all_gated() ? "" : "the program has looked up more functions of the driver than curb has thunks for";
}

std::optional<std::string> unless_empty(std::string why) {
    return why.empty() ? std::nullopt : std::optional(std::move(why));
}

// Returns the bytes that the helper has moved, from its line "out 2147483648". nullopt for another line.
std::optional<Bytes> moved(const std::string &line) {
    constexpr std::string_view kOut = "out ";
    Bytes bytes = 0;
    if (!line.starts_with(kOut) ||
        std::from_chars(line.data() + kOut.size(), line.data() + line.size(), bytes).ec != std::errc())
        return std::nullopt;
    return bytes;
}

// Ends an attempt without a nap: opens the gate.
void stop(const std::string &why) {
    locked([](State &state) { state.kept_out_until_ms = 0; });
    gate::open(gate::For::nap);
    if (!why.empty()) note_refused(why);
}

}  // namespace

void note_refused(const std::string &why) {
    const bool is_new = locked([&](State &state) {
        if (!state.by_request) ++state.refusals;
        state.is_refused = true;
        return std::exchange(state.status.refused, why) != why;
    });
    if (locked([](const State &state) { return state.by_turn; })) turns::note_refused();
    log::write(is_new ? LogLevel::info : LogLevel::debug, "no nap now: " + why);
}

std::string why_never() {
    const Device *device = devices::sharing_host_memory();
    return device ? device->name() + " shares the host's memory, so naps and turns would make no room" : "";
}

std::string why_no_nap() {
    if (std::string why = why_never(); !why.empty()) return why;
    return captures::any() ? "a graph capture is under way" : "";
}

std::string why_not_deep() {
    if (shared::any())
        return "it shares GPU memory with other processes (CUDA IPC or exported handles), and the driver cannot move "
               "such memory";
    if (shared::any_event()) return "it shares events with other processes (CUDA IPC), which curb does not move";
    if (shared::any_external())
        return "it has imported memory of a graphics library or a device (cuImportExternalMemory), which curb does not "
               "move";
    return {};
}

bool others_wait() noexcept {
    return std::any_of(devices::all().begin(), devices::all().end(), [](const Device &device) {
        return devices::in_use(device) && wait_queue::others_wait(wait_queue::Order::device, device);
    });
}

// ---- out ----

const OneNap::Step OneNap::kLeaving[] = {&OneNap::prepare, &OneNap::close_gate, &OneNap::wait_for_calls,
                                         &OneNap::leave};

// Asks before the gate closes: without an answer of the driver curb could not see later whether the process is back.
OneNap::Refusal OneNap::prepare() {
    if (!policy_.light.value_or(true)) not_light_ = "its policy has \"light\": false";
    if (!state_by_driver())
        not_deep_ = "the driver cannot move processes out of their GPUs; that takes 570 or newer";
    else
        not_deep_ = Helper::why_none();
    if (!not_light_.empty() && !not_deep_.empty()) return not_deep_;
    if (!devices::any_in_use()) return "it holds no memory of a GPU";
    // From here on the gate knows that a call has begun. By request there was no idle time before.
    if (locked([](const State &state) { return state.by_request; })) {
        gate::take_called();
        sleep_asleep(50);
    }
    return std::nullopt;
}

OneNap::Refusal OneNap::close_gate() {
    switch (gate::close(gate::For::nap, kMove)) {
        case gate::Closing::closed: break;
        case gate::Closing::taken: return "";
        case gate::Closing::uncounted:
            return "the kernel has no membarrier, so it is not known which calls are under way";
    }
    if (std::string why = why_no_nap(); !why.empty()) return why;
    if (std::string why = bypassing(); !why.empty()) return why;
    if (std::string why = why_not_deep(); !why.empty()) not_deep_ = std::move(why);
    return not_light_.empty() ? std::nullopt : unless_empty(not_deep_);
}

// At the end of a turn: all calls are counted, and the device finishes what it has. The program's next calls wait
// meanwhile, and one under way may wait for one of these; so the wait has an end.
OneNap::Refusal OneNap::wait_for_all_calls() {
    constexpr std::uint64_t kMostMs = 10'000;
    if (!not_light_.empty()) return not_light_;
    if (!poll_until([] { return gate::call_under_way() == nullptr; }, kMostMs))
        return "a call of CUDA did not return within 10s";
    return move::wait_for_work(kMostMs) ? std::nullopt : Refusal("work that it has submitted did not end within 10s");
}

OneNap::Refusal OneNap::wait_for_calls() {
    if (by_turn_) return wait_for_all_calls();
    const bool by_request = locked([](const State &state) { return state.by_request; });
    if (!poll_until([] { return gate::call_under_way() == nullptr; }, 100) || wait_queue::any())
        return by_request ? "a call of CUDA is under way" : "";
    if (not_light_.empty() && !move::has_any()) {
        not_light_ = blocks::why_not();
        if (not_light_.empty()) not_light_ = "it has no memory that curb can move itself";
    }
    // A call that is not counted only submits work or is short, but one that has just begun may still be in the driver,
    // or about to enter it. The driver's own move waits for the first; the second would wait for the end of the nap.
    const bool was_called = gate::take_called();
    if (!not_light_.empty()) return was_called && !by_request ? Refusal("") : unless_empty(not_deep_);
    if (was_called) {
        if (!by_request || !not_deep_.empty()) return by_request ? "a call of CUDA is under way" : "";
        not_light_ = "a call of CUDA was under way";
    }
    if (!move::wait_for_work(1000)) return "work that it has submitted did not end within 1s";
    return std::nullopt;
}

// A part leaves at once; the rest follows if that is too little.
OneNap::Refusal OneNap::leave() {
    locked([&](State &state) {
        state.phase = Phase::leaving;
        state.is_deep = false;
        state.status.light = state.status.deep = {};
        state.status.zeros = 0;
        state.status.stays.clear();
        state.status.not_light = not_light_;
    });
    if (not_light_.empty())
        if (auto why = move_lightly()) return why;
    if (!is_light_ && not_light_.empty()) not_light_ = "nothing could leave by curb's own copy";
    if (is_light_) return std::nullopt;
    if (locked([](const State &state) { return state.was_kept_out; })) return Refusal(not_light_);  // a client goes on
    if (by_turn_) return Refusal(not_light_);
    if (policy_.deep == policy::kNever) return "suspend.deep is \"never\", and " + not_light_;
    return not_deep_.empty() ? move_deeply() : Refusal(not_deep_);
}

std::string OneNap::host_limit(const std::optional<policy::Size> &most) const {
    const auto room = control::host_room(getpid());
    if (copied_ == 0 || !room) return most ? policy::format(*most) : "100%";
    const Bytes all = most ? most->on(room->total) : room->total;
    return policy::format_exact(all - std::min(all, copied_));
}

Bytes OneNap::host_budget() const {
    const auto room = control::host_room(getpid());
    if (!room) return 0;
    return policy::host_budget(room->available + move::kept().bytes, room->total,
                               policy::most_of_host(room->total, policy_.host_memory, ceiling_));
}

OneNap::Refusal OneNap::move_lightly() {
    const auto begin = Clock::now();
    const auto is_used_again = [this] { return !by_turn_ && is_called(); };
    const auto moved = move::out(host_budget(), [&] {
        if (is_used_again() || ends()) return move::GoOn::no;
        return host_is_short(milliseconds(100), policy::ends_copying) ? move::GoOn::enough : move::GoOn::yes;
    });
    if (!moved) {
        if (is_used_again() || ends()) return "";
        not_light_ = moved.error();
        locked([&](State &state) { state.status.not_light = not_light_; });
        return not_deep_.empty() && !by_turn_ ? std::nullopt : Refusal(not_light_);
    }
    const std::uint64_t ms = ms_since(begin);
    is_light_ = move::is_out();
    light_bytes_ = moved->bytes;
    copied_ = moved->copied;
    const Bytes zeros = light_bytes_ - std::min(light_bytes_, copied_);
    std::string stays = moved->stays;
    if (is_light_ && !not_deep_.empty()) stays.append(stays.empty() ? "" : ", ").append("the rest: " + not_deep_);
    locked([&](State &state) {
        state.status.stays = std::move(stays);
        if (!is_light_) return;
        state.status.is_light = true;
        state.status.light = {copied_, ms, 0};
        state.status.zeros = zeros;
        state.status.light_total += copied_;
        state.status.zeros_total += zeros;
    });
    if (!is_light_) return std::nullopt;
    note_out(ms);
    log::write(LogLevel::debug, "of the nap's memory " + policy::format_human(copied_) + " was copied, " +
                                    policy::format_human(zeros) + " is zeros: " + std::to_string(ms) + " ms, " +
                                    rate(light_bytes_, ms));
    return std::nullopt;
}

// The driver moves what the process holds, by the helper.
OneNap::Refusal OneNap::move_deeply() {
    const bool may_begin = locked([](State &state) {
        if (state.process_ends || is_kept_out(state)) return false;
        state.phase = Phase::leaving;
        return state.is_deep = true;
    });
    if (!may_begin) return "";
    const auto begin = Clock::now();
    helper_.start({"suspend", "--nap", "--host-memory", host_limit(policy_.host_memory), "--host-memory",
                   host_limit(ceiling_), std::to_string(getpid())});
    const auto first = helper_.line();
    const auto bytes = first ? moved(*first) : std::nullopt;
    if (!bytes) {
        const bool has_run = helper_.end() != Helper::kNotExecuted;
        bring_back_deeply();
        locked([](State &state) { state.is_deep = false; });
        return has_run ? first.value_or("the command curb ended without a word") : Helper::kNone;
    }
    const std::uint64_t ms = ms_since(begin);
    is_deep_ = true;
    deep_bytes_ = *bytes;
    locked([&](State &state) {
        state.status.is_light = false;
        state.status.deep = {deep_bytes_, ms, 0};
        state.status.stays.clear();
    });
    note_out(ms);
    return std::nullopt;
}

// Records what has left, and says so at the first time.
void OneNap::note_out(std::uint64_t took_ms) const {
    const Bytes all = light_bytes_ + deep_bytes_;
    const bool is_first = !(is_light_ && is_deep_);
    gate::note_out(gate::For::nap, all, trace::back);
    trace::out(is_first ? all : deep_bytes_,
               is_first ? (by_turn_    ? "turn"
                           : is_light_ ? "light nap"
                                       : "nap")
                        : "deep",
               took_ms);
    if (by_turn_ && is_first) turns::note_out(took_ms);
    locked([&](State &state) {
        state.phase = Phase::out;
        state.refusals = 0;
        state.status.bytes = all;
        state.status.bytes_total += is_first ? all : deep_bytes_;
        state.status.refused.clear();
        if (!is_first) return;
        state.status.since = control::unix_now();
        ++state.status.count;
    });
    if (is_first && by_turn_)
        log::write(LogLevel::info, "the turn is over: " + policy::format_human(all) +
                                       " moved to host memory; calls of CUDA wait for the next turn");
    else if (is_first)
        log::write(LogLevel::info, "a nap begins: " + policy::format_human(all) +
                                       " moved to host memory; the next call of CUDA ends it");
    else
        log::write(LogLevel::info,
                   "the nap is deep: the driver has moved " + policy::format_human(deep_bytes_) + " more");
}

// ---- while it is out ----

bool OneNap::is_due_to_deepen() const {
    if (is_deep_ || !not_deep_.empty()) return false;
    constexpr milliseconds kToServe{500};  // in which others take what has become free
    const auto out_for = std::chrono::duration_cast<milliseconds>(Clock::now() - out_since_);
    const bool frees_too_little = out_for >= kToServe && others_wait();
    return policy::goes_deep(out_for, policy_.deep.value_or(std::chrono::seconds(10)), frees_too_little);
}

bool OneNap::host_is_short(milliseconds interval, bool (*is_short)(Bytes, Bytes) noexcept) {
    if (Clock::now() < host_seen_ + interval) return false;
    host_seen_ = Clock::now();
    const auto room = control::host_room(getpid());
    return room && is_short(room->available, room->total);
}

// Has the driver move the rest if that is due. False if it is not.
bool OneNap::deepens() {
    if (!is_due_to_deepen()) return false;
    if (const auto why = move_deeply(); why && !why->empty()) {
        not_deep_ = *why;
        locked([&](State &state) {
            state.phase = Phase::out;
            state.status.stays.append(state.status.stays.empty() ? "" : ", ").append("the rest: " + *why);
        });
        log::write(LogLevel::info, "the nap stays light: " + *why);
    }
    return true;
}

// Brings back what curb has moved if host memory runs short. False if it does not, or if there is no room.
bool OneNap::leaves_host_memory() {
    if (!is_light_ || is_deep_ || !host_is_short(std::chrono::seconds(1), policy::is_short_of_host) ||
        !bring_back_lightly(true))
        return false;
    last_ = "host memory ran short";
    return true;
}

bool OneNap::wait_until_needed() {
    // End the lease: from here on another tool may bring the process back, and then a waiting call opens the gate.
    if (!is_light_) gate::close(gate::For::nap, milliseconds(0));
    while (!is_called() && gate::is_closed() && !(is_deep_ && helper_.has_closed())) {
        struct Seen {
            Phase phase;
            bool process_ends, may_move;
        };
        const auto [phase, process_ends, may_move] = locked([](const State &state) {
            return Seen{state.phase, state.process_ends, !is_kept_out(state) && !state.process_ends};
        });
        if (phase == Phase::staying_out) return false;
        if (process_ends && is_deep_) break;
        if (may_move && deepens()) continue;
        if (may_move && leaves_host_memory()) break;
        // No other tool can bring back what curb has moved, so no call may open the gate.
        if (is_light_) gate::close(gate::For::nap, kMove);
        if (is_deep_) read_lines();
        const own_thread::Asleep asleep;
        gate::sleep_until_called(100);
    }
    return locked([](State &state) {
        if (state.phase == Phase::out) state.phase = Phase::coming_back;
        return state.phase == Phase::coming_back;
    });
}

// ---- back ----

void OneNap::read_lines() {
    while (const auto line = helper_.line_now()) take_line(*line);
}

void OneNap::take_line(const std::string &line) {
    if (line == "waits" || line == "comes")
        note_room(line == "waits");
    else
        last_ = line;
}

void OneNap::come_back_deeply() {
    if (!is_deep_) return;
    const auto begin = Clock::now();
    const bool is_shown = in_force::snapshot()->policy.share != policy::Share::none;
    if (!helper_.tell(is_shown ? "back" : "hidden")) {
        read_lines();  // of a helper that has ended
        helper_.hang_up();
    }
    while (const auto line = helper_.line()) take_line(*line);
    helper_.end();
    bring_back_deeply();
    is_deep_ = false;
    locked([&](State &state) {
        state.is_deep = false;
        state.no_room_since_ms = 0;
        state.status.no_room_since = 0;
        state.status.deep.back_ms = ms_since(begin);
    });
}

bool OneNap::come_back_lightly() {
    // A client that was killed may have left the process where only `curb resume` brings it back.
    if (locked([](const State &state) { return state.was_kept_out; })) wait_for_resume();
    if (!bring_back_lightly(false)) return false;
    locked([](State &state) {
        state.is_deep = state.was_kept_out = false;
        state.status.is_light = false;
    });
    return true;
}

// Lets the helper go. Waits for `curb resume` if curb has moved a part: that is not back then, so the gate stays
// closed. False if there is no helper any more: then the nap ends.
bool OneNap::stay_out() {
    if (is_deep_) {
        if (!helper_.tell("leave")) return false;
        helper_.end();
    }
    log::write(LogLevel::info, "the nap is a suspend now: calls of CUDA wait until curb resume");
    if (is_light_) wait_for_resume();
    return true;
}

// Waits until no client keeps the process out, and the driver has it in its GPUs.
void OneNap::wait_for_resume() {
    const auto is_out = [] {
        return locked([](const State &state) { return is_kept_out(state); }) ||
               state_by_driver().value_or(CU_PROCESS_STATE_RUNNING) != CU_PROCESS_STATE_RUNNING;
    };
    while (is_out()) {
        gate::close(gate::For::nap, kMove);
        const own_thread::Asleep asleep;
        gate::sleep_until_called(100);
    }
    locked([](State &state) { state.phase = Phase::coming_back; });
}

void OneNap::note_back() const {
    const auto waited_ms = gate::waited_ms();
    if (waited_ms) activity::note();  // a call has ended it, and not a command or the host's lack of memory
    locked([&](State &state) {
        state.status.waited_ms = waited_ms.value_or(0);
        state.status.waited_total_ms += waited_ms.value_or(0);
    });
    const std::string waited = waited_ms ? ", and a call waited " + std::to_string(*waited_ms) + " ms for its end" : "";
    const auto took_ms = locked([](const State &state) { return state.status.light.back_ms; });
    turns::note_back(by_turn_ ? std::optional(took_ms) : std::nullopt);
    log::write(LogLevel::info, (by_turn_ ? "the next turn begins" : "the nap has ended") + waited +
                                   (last_.empty() ? "" : ": " + last_));
}

void OneNap::take() {
    {
        const auto snapshot = in_force::snapshot();
        policy_ = snapshot->policy.suspend;
        ceiling_ = snapshot->policy.host_memory_ceiling;
    }
    by_turn_ = locked([](const State &state) { return state.by_turn; });
    for (const Step step : kLeaving)
        if (const auto why = (this->*step)()) return stop(*why);
    out_since_ = Clock::now();
    for (;;) {
        if (!wait_until_needed() && stay_out() && !is_light_) return;
        come_back_deeply();
        // At the end of the process the context is there, and the driver needs no more of it. A call of an exit handler
        // still brings back the rest.
        if (!is_light_ || !ends() || gate::waiting_since() != 0) break;
        locked([](State &state) { state.phase = Phase::out; });
    }
    if (!come_back_lightly()) return;
    note_back();
    gate::open(gate::For::nap,
               locked([](const State &state) { return state.status.light.back_ms + state.status.deep.back_ms; }));
    gate::note_back();   // a client may have closed the gate again
    trim_host_memory();  // last: it may take long
}

void OneNap::come_back_at_any_cost() noexcept {
    for (;;) {
        try {
            if (locked([](const State &state) { return state.is_deep; })) bring_back_deeply();
            bring_back_lightly(false);
            return gate::open(gate::For::nap);
        } catch (...) {
            sleep_ms(100);
        }
    }
}

}  // namespace curb::shim::nap
