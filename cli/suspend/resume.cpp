// `curb resume` moves a suspended process back into its GPUs. With too little free memory the driver gives the process
// up for good, so curb checks it right before the call. Another process can still take the memory in between.
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <thread>
#include <utility>

#include "command/command.hpp"
#include "control/host_room.hpp"
#include "control/suspended.hpp"
#include "control/ticket.hpp"
#include "policy/decisions/move.hpp"
#include "policy/values/duration.hpp"
#include "suspend/gate.hpp"
#include "suspend/moving.hpp"
#include "terminal/format.hpp"
#include "terminal/messages.hpp"
#include "terminal/terminal.hpp"

namespace curb::cli {
namespace {

namespace suspended = control::suspended;
using policy::Bytes;
using policy::format_human;

struct ResumeOptions : MoveOptions {
    std::optional<std::string> wait, bytes;

    void declare(Options &takes) {
        selection.declare(takes);
        takes.option("--wait", wait, "DURATION", "Wait up to this long for free memory on its GPUs: 30s, 10m");
        takes.option("--bytes", bytes, "SIZE", "What it held of each GPU, if no record of that is left");
        takes.sim(sim);
        takes.json(json);
    }
};

// How to resume a process.
struct Manner {
    policy::Duration patience{0};  // how long to wait for room
    std::optional<Bytes> bytes;    // what it held of each GPU, if no record of that is left
    bool nap = false;              // print "waits" when the wait for room begins, and "comes" when it ends
    bool is_shown = true;          // to other users, while it waits for room
};

policy::Result<Manner, std::string> manner_of(const ResumeOptions &options) {
    Manner out;
    if (options.wait) {
        const auto wait = policy::parse_duration(*options.wait);
        if (!wait) return "--wait: " + wait.error();
        out.patience = *wait;
    }
    if (options.bytes) {
        const auto bytes = bytes_in(*options.bytes);
        if (!bytes) return bytes.error();
        out.bytes = *bytes;
    }
    return out;
}

class Resuming : Moving {
  public:
    Resuming(const Manner &manner, int pid, std::vector<std::string> *answers)
        : Moving("resume", "resumed", pid, answers), manner_(manner) {}

    int run() {
        ResumeFacts facts;
        facts.user = ::geteuid();
        facts.target = target_;
        if (const auto refusal = why_not_resume(facts)) return refused(*refusal);
        suspended::remove_stale(target_.process);
        const auto claim = suspended::Claim::take(target_.process);
        if (!claim) return ended(kRefused, "unchanged", cannot_ + claim.error());
        const auto driver = open_driver();
        facts.driver = facts_of(driver, pid_);
        if (target_.under_curb && facts.driver->state.value_or(CU_PROCESS_STATE_RUNNING) == CU_PROCESS_STATE_RUNNING)
            if (const auto woken = end_light_nap(pid_, for_light()))
                return *woken ? woken_up(**woken) : ended(kRefused, "suspended", cannot_ + woken->error());
        if (const auto refusal = why_not_resume(facts)) return refused(*refusal);
        if (!is_the_same()) return ended(kRefused, "ended", cannot_ + kAnother);
        hold_interrupts();
        if (*facts.driver->state == CU_PROCESS_STATE_LOCKED) {
            if (!claim->is_alone()) return ended(kRefused, "unchanged", cannot_ + suspended::Claim::kTaken);
            say::warning(target_.text() +
                         " is locked, not suspended: a suspend or resume was cut short; it is unlocked");
            return unlocked(*driver, 0, std::nullopt);
        }
        if (const auto status = wait_for_room(facts)) return *status;
        return move(*driver);
    }

  private:
    // Returns the memory to wait for: by the record, else by the process's status, else by --bytes.
    [[nodiscard]] std::vector<Need> needs(const std::vector<GpuState> &gpus) const {
        std::vector<Need> out;
        const auto need = [&](const std::string &uuid, Bytes held, Bytes free = ~Bytes{0}) {
            out.push_back({uuid, room_for(held, free, held_on(gpus, uuid, pid_))});
        };
        if (const auto record = suspended::read(target_.process)) {
            for (const suspended::Gpu &gpu : *record) need(gpu.uuid, gpu.held, gpu.free);
        } else if (const auto books = ask_books(target_)) {
            for (const control::GpuStatus &gpu : books->gpus)
                if (gpu.held != 0) need(gpu.uuid, gpu.held);
        } else if (manner_.bytes) {
            const bool listed = !gpus_of(gpus, pid_).empty();  // if not, it may have been on any GPU
            for (const GpuState &gpu : gpus)
                if (!listed || gpu.user(pid_)) need(gpu.uuid, *manner_.bytes);
        }
        return out;
    }

    // Returns nullopt when there is enough room. Returns the exit status if there is none within the patience.
    std::optional<int> wait_for_room(ResumeFacts &facts) {
        constexpr auto kNextPoll = std::chrono::milliseconds(200), kNextLook = std::chrono::milliseconds(20);
        Progress progress([&](Seconds so_far) {
            return fmt::format("  waiting for room on the device, {} of {}", seconds_text(so_far),
                               policy::format(manner_.patience));
        });
        for (bool waits = false;;) {
            if (suspended::start_of(pid_) != target_.process.start) {
                suspended::remove_stale(target_.process);
                return ended(kRefused, "ended", cannot_ + "it has ended while it waited for room");
            }
            facts.gpus = nvml_gpus();
            if (*facts.gpus) facts.needs = needs(**facts.gpus);
            const auto refusal = why_not_resume(facts);
            if (!refusal && its_turn(facts) && reserve(facts)) {
                if (manner_.nap && waits) print("comes\n");
                return std::nullopt;
            }
            if (!refusal) {  // another process came first: try again soon
                if (interrupted()) return ended(kInterrupted, "suspended", cannot_ + "interrupted");
                std::this_thread::sleep_for(kNextLook);
                continue;
            }
            if (interrupted()) return ended(kInterrupted, "suspended", refusal->text() + "; interrupted");
            if (!only_room_is_lacking(facts) || progress.so_far() >= manner_.patience)
                return ended(kRefused, "suspended", refusal->text());
            if (manner_.nap && !std::exchange(waits, true)) print("waits\n");
            static_cast<void>(its_turn(facts));  // enters the queue
            progress.refresh();
            std::this_thread::sleep_for(kNextPoll);
        }
    }

    // True unless another process came first and waits for one of the same GPUs. The first call enters the queue.
    bool its_turn(const ResumeFacts &facts) {
        if (tickets_.empty())
            for (const Need &need : *facts.needs)
                tickets_.emplace_back(need.uuid, control::Ticket(control::places(), need.uuid, need.bytes,
                                                                 control::Ticket::Among::all, manner_.is_shown));
        bool may_take = true;
        for (auto &[uuid, ticket] : tickets_) may_take = ticket.may_take(free_of(facts, uuid)) && may_take;
        return may_take;
    }

    // Reserves the room in the order. Of other processes under curb, those that wait for memory then leave it free.
    // False if one of them was faster.
    bool reserve(ResumeFacts &facts) {
        const bool is_reserved = std::all_of(tickets_.begin(), tickets_.end(), [&](auto &queued) {
            return queued.second.reserve(free_of(facts, queued.first));
        });
        if (is_reserved && !is_scarce(facts)) return true;
        if (is_reserved) {
            // Others may have read the order just before: they read it every 20 ms.
            std::this_thread::sleep_for(std::chrono::milliseconds(25));
            facts.gpus = nvml_gpus();
            if (!why_not_resume(facts)) return true;
        }
        for (auto &queued : tickets_) queued.second.give_up_reservation();
        return false;
    }
    // True if less than an eighth of a GPU would be left: then a request of another process may take what this one
    // needs.
    static bool is_scarce(const ResumeFacts &facts) {
        return std::any_of(facts.needs->begin(), facts.needs->end(), [&](const Need &need) {
            const GpuState *gpu = gpu_with(**facts.gpus, need.uuid);
            return gpu && gpu->free - std::min(gpu->free, need.bytes) < gpu->total / 8;
        });
    }
    static Bytes free_of(const ResumeFacts &facts, const std::string &uuid) {
        const GpuState *gpu = gpu_with(**facts.gpus, uuid);
        return gpu ? gpu->free : 0;
    }

    // How long to wait for what curb itself has moved.
    [[nodiscard]] policy::Duration for_light() const { return std::max(manner_.patience, policy::Duration(10'000)); }

    // Only curb itself had moved memory of it.
    int woken_up(const control::NapStatus &nap) const {
        suspended::remove(target_.process);
        if (!answer({{"pid", pid_}, {"resumed", true}, {"bytes", nap.bytes}, {"napped", true}}))
            print(fmt::format("resumed {}: {}\n", target_.text(), light_text(nap)));
        return 0;
    }
    // "8 GiB back on the device by curb in 0.2 s (40 GiB/s)"
    static std::string light_text(const control::NapStatus &nap) {
        const Seconds time = std::chrono::milliseconds(nap.light.back_ms);
        const Bytes bytes = nap.light.bytes + nap.zeros;
        return fmt::format("{} back on the device by curb in {} ({})", format_human(bytes), seconds_text(time),
                           rate_text(bytes, time));
    }

    int move(const Driver &driver) const {
        const Bytes left = held();
        const Bytes whole = recorded();
        const auto back = [&](Bytes now) { return now - std::min(now, left); };
        CUcheckpointRestoreArgs arguments{};
        const Made moved =
            make([&] { return driver.cuCheckpointProcessRestore(pid_, &arguments); },
                 [&](Seconds so_far) {
                     return fmt::format("  {}{} back, {}", format_human(back(held())),
                                        whole == 0 ? "" : " of " + format_human(back(whole)), seconds_text(so_far));
                 },
                 "half a resume cannot be stopped: it goes on to its end");
        const FoundState state = moved.error == CUDA_SUCCESS ? FoundState() : state_of(driver, pid_);
        if (moved.error == CUDA_SUCCESS || state.is(CU_PROCESS_STATE_LOCKED))
            return unlocked(driver, back(held()), moved.time);
        const std::string why = cannot_ + "the driver could not move it back: " + driver.text(moved.error);
        if (state.is(CU_PROCESS_STATE_CHECKPOINTED))
            return ended(kRefused, "suspended", why + "; it is still suspended, and curb resume can be tried again");
        return half_done(state, why);
    }

    int unlocked(const Driver &driver, Bytes bytes, std::optional<Seconds> time) const {
        const FoundState state = unlock(driver, pid_);
        if (!state.is(CU_PROCESS_STATE_RUNNING))
            return half_done(state,
                             cannot_ + "its memory is back, but it could not be unlocked: " + driver.text(state.error));
        suspended::remove(target_.process);
        const auto took = std::chrono::duration_cast<policy::Duration>(time.value_or(Seconds(0)));
        const auto light = target_.under_curb ? end_light_nap(pid_, for_light(), took) : std::nullopt;
        if (target_.under_curb && !light) open_gate(pid_, took);
        const control::NapStatus by_curb = light && *light ? **light : control::NapStatus();
        const Bytes light_bytes = by_curb.light.bytes + by_curb.zeros;
        if (light && !*light) say::warning(target_.text() + ": " + light->error());
        if (answer(
                {{"pid", pid_},
                 {"resumed", true},
                 {"bytes", bytes + light_bytes},
                 {"seconds", std::to_string(time.value_or(Seconds(0)).count())},
                 {"light_bytes", light_bytes},
                 {"light_seconds", std::to_string(Seconds(std::chrono::milliseconds(by_curb.light.back_ms)).count())}}))
            return 0;
        if (time)
            print(fmt::format("resumed {}: {} back on the device{} in {} ({}){}\n", target_.text(), format_human(bytes),
                              light_bytes != 0 ? " by the driver" : "", seconds_text(*time), rate_text(bytes, *time),
                              light_bytes != 0 ? ", " + light_text(by_curb) : ""));
        else
            print("unlocked " + target_.text() + ": it runs again\n");
        return 0;
    }

    const Manner manner_;
    std::vector<std::pair<std::string, control::Ticket>> tickets_;  // by GPU; empty: it has not waited
};

int resume(const ResumeOptions &options) {
    const auto manner = manner_of(options);
    if (!manner) return failed(manner.error());
    return each("resume", false, options,
                [&](int pid, auto *answers) { return Resuming(*manner, pid, answers).run(); });
}

}  // namespace

namespace {

// Brings a process back if host memory has run short and there is room for it. True if it has.
bool bring_back_for_host(int pid) {
    const auto host = control::host_room(pid);
    if (!host || !policy::is_short_of_host(host->available, host->total)) return false;
    print("host memory ran short: ");
    return Resuming({}, pid, nullptr).run() == 0;  // without patience
}

}  // namespace

int bring_back_when_asked(const suspended::Process &process) {
    std::signal(SIGPIPE, SIG_IGN);  // the process may end before it reads the helper's output
    const int pid = process.pid;
    const auto driver = open_driver();
    constexpr int kTriesAtEnd = 20;
    for (int tries = 0;;) {
        pollfd input{STDIN_FILENO, POLLIN, 0};
        const bool asked = ::poll(&input, 1, 1000) > 0;
        if (suspended::start_of(pid) != process.start) {
            suspended::remove_stale(process);
            return 0;
        }
        const FoundState state = driver ? state_of(*driver, pid) : FoundState();
        if (state.is(CU_PROCESS_STATE_RUNNING)) return 0;
        if (!asked) {
            if (bring_back_for_host(pid)) return 0;
            continue;
        }
        char first = 0;  // of "leave", "back", or "hidden": back, without showing others that it waits
        const bool is_answered = ::read(STDIN_FILENO, &first, 1) == 1;
        if (is_answered && first == 'l') return 0;
        const Manner manner{.patience = std::chrono::hours(24), .bytes = {}, .nap = true, .is_shown = first != 'h'};
        const int status = Resuming(manner, pid, nullptr).run();
        if (is_answered || status == 0) return status;  // the process sees the end, and starts another helper
        // Its socket is closed: the process is about to end, has executed another program, or cannot tell us to go on.
        // A driver that no longer knows it does not say which: it closes its files some time before it has ended.
        if (driver && !state.known && ++tries == kTriesAtEnd) return status;
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
}

extern const Command kResume{
    .name = "resume",
    .line = "Bring a suspended process back",
    .help = R"(
Refused while a GPU has less free memory than the process held there: the driver could not restore it, and it would be lost.
Another process can still take that memory at the same moment. Unlocks a process that an interrupted suspend left locked.

Exit status 0: it runs, 1: not, and it is as before, 2: in a state that standard error names, 125: wrong arguments,
or the answer could not be written, 130: not, because of Ctrl-C.

Examples:
  curb resume 4711
  curb resume --user bob
  curb resume --wait 10m 4711                 as soon as there is room
  curb resume --bytes 8GiB 4711               when the record of what it held is lost)",
    .takes = takes<ResumeOptions, resume>,
};

}  // namespace curb::cli
