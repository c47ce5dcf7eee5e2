// `curb suspend` moves a process out of its GPUs into host memory, `curb resume` moves it back. Both check first
// everything that can go wrong. Once suspend has locked the process, every way out leaves it running or suspended,
// never locked, as far as the driver allows. With too little free memory on resume the driver blocks the process for
// good, so curb checks it right before the call. Another process can still take the memory in between.
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <limits>
#include <thread>

#include "checkpoint.hpp"
#include "command.hpp"
#include "control/suspended.hpp"
#include "control/turn.hpp"
#include "gate.hpp"
#include "json.hpp"
#include "policy/duration.hpp"
#include "selection.hpp"
#include "sim.hpp"
#include "terminal.hpp"

namespace curb::cli {
namespace {

namespace suspended = control::suspended;
using policy::Bytes;
using policy::format_human;

// Exit statuses.
constexpr int kRefused = 1;
constexpr int kHalfDone = 2;
constexpr int kInterrupted = 130;

std::string seconds_text(Seconds seconds) {
    return fmt::format("{:.{}f} s", seconds.count(), seconds.count() < 0.1 ? 3 : 1);
}

// "2.23 GiB/s"
std::string rate_text(Bytes bytes, Seconds seconds) {
    const double rate = static_cast<double>(bytes) / std::max(seconds.count(), 1e-3);
    return format_human(static_cast<Bytes>(rate)) + "/s";
}

// One process that is moved, and the ways in which both commands end.
class Moving {
  protected:
    // `what`: "suspend", `done`: "suspended".
    Moving(const char *what, const char *done, int pid, bool json)
        : pid_(pid),
          json_(json),
          target_(inspect(pid)),
          cannot_(fmt::format("cannot {} {}: ", what, target_.text())),
          done_(done) {}

    // Prints that it is not done, and why. Returns `status`.
    [[nodiscard]] int ended(int status, const std::string &state, const std::string &message) const {
        complain(message);
        if (json_)
            print_line(json::object(
                {{"pid", pid_}, {done_, false}, {"process", json::text(state)}, {"message", json::text(message)}}));
        return status;
    }
    [[nodiscard]] int refused(const Refusal &refusal) const { return ended(kRefused, "unchanged", refusal.text()); }
    // Prints the state of a process that is neither as before nor as it should be.
    [[nodiscard]] int half_done(const Left &left, const std::string &why, const std::string &how,
                                const std::string &remedy) const {
        if (suspended::start_of(pid_) != target_.process.start)
            return ended(kHalfDone, "ended", why + "; the process has ended");
        const bool failed = left.is(CU_PROCESS_STATE_FAILED);
        return ended(kHalfDone, left.name(),
                     why + how +
                         (failed ? ": the driver has given it up, and all that is left is to end it (kill -9)"
                                 : ": try curb resume " + remedy));
    }
    [[nodiscard]] Bytes held() const {
        const auto gpus = nvml_gpus();
        return gpus ? held_by(*gpus, pid_) : 0;
    }

    const int pid_;
    const bool json_;
    const Target target_;
    const std::string cannot_;  // "cannot suspend 4711 (python3): "

  private:
    const char *done_;
};

// ---- suspend ----

// Moves each process in turn. Returns the worst status: a process that is half done counts more than one that is not.
// Ends at once when the user interrupts.
template <class Options, class Move>
int each(const char *command, bool is_out_after, const Options &options, Move move) {
    if (options.sim)
        if (const auto fault = use_sim()) return failed(command + (": " + *fault));
    const auto processes = found(options.selection, command);
    if (!processes) return failed(command + (": " + processes.error()));
    int status = 0;
    bool none = true;
    for (const int pid : *processes) {
        const Target target = inspect(pid);
        const bool is_out = target.process.start != 0 && suspended::read(target.process).has_value();
        // A description fits processes that are where they should be already.
        if (options.selection.is_described() && is_out == is_out_after) continue;
        none = false;
        const int one = move(pid);
        if (one == kInterrupted) return one;
        status = std::max(status, one);
    }
    if (none) complain(fmt::format("no process under curb is there to {}", command));
    return status;
}

struct SuspendOptions {
    Selection selection;
    std::string timeout = "10s";
    bool force = false, sim = false, json = false, nap = false;
    std::string host_memory = "100%";

    void declare(Options &takes) {
        selection.declare(takes);
        takes.option("--timeout", timeout, "DURATION", "How long the process's submitted work may take to end [10s]");
        takes.flag("--force", force, "Go on where it is only guessed that it might go wrong");
        takes.flag("--sim", sim, "On the simulated machine of programs under curb run --sim with CURB_SIM_STATE");
        takes.json(json);
        takes.hidden_flag("--nap", nap);
        takes.hidden_option("--host-memory", host_memory);
    }
    [[nodiscard]] std::optional<policy::Size> most_host() const {
        const auto size = policy::parse_size(host_memory);
        return nap && size ? std::optional(*size) : std::nullopt;
    }
};

class Suspending : Moving {
  public:
    Suspending(const SuspendOptions &options, int pid)
        : Moving("suspend", "suspended", pid, options.json), options_(options), gate_(pid) {}

    int run() {
        const auto patience = policy::parse_duration(options_.timeout);
        if (!patience || patience->count() == 0)
            return ended(kFailure, "unchanged",
                         "--timeout: " + (patience ? "0 would wait for ever; give a time" : patience.error()));
        SuspendFacts known;
        known.user = ::geteuid();
        known.target = target_;
        known.force = options_.force;
        // First the checks that do not need the driver.
        if (const auto refusal = why_not_suspend(known)) return refused(*refusal);
        suspended::remove_stale(target_.process);
        const auto claim = suspended::Claim::take(target_.process);
        if (!claim) return ended(kRefused, "unchanged", cannot_ + claim.error());
        const auto driver = open_driver();
        known.driver = facts_of(driver, pid_);
        if (target_.under_curb && known.driver->state == CU_PROCESS_STATE_CHECKPOINTED && gate_.turn_nap_into_suspend())
            return napped();
        known.gpus = nvml_gpus();
        known.books = books_of(target_);
        known.host = host_room(pid_);
        known.most_host = options_.most_host();
        if (*known.gpus) known.companion = companion_of(target_, **known.gpus);
        if (const auto refusal = why_not_suspend(known)) return refused(*refusal);
        if (target_.under_curb && !options_.nap)  // it has closed its gate itself
            if (const auto why = gate_.close(*patience, options_.force))
                return ended(kRefused, "unchanged", cannot_ + *why);
        const auto longest = std::numeric_limits<unsigned>::max();
        return lock(*driver, static_cast<unsigned>(std::min<std::int64_t>(patience->count(), longest)), known);
    }

  private:
    int lock(const Driver &driver, unsigned patience, SuspendFacts &known) {
        hold_interrupts();
        CUcheckpointLockArgs arguments{};
        arguments.timeoutMs = patience;
        const Made locked = make([&] { return driver.cuCheckpointProcessLock(pid_, &arguments); },
                                 [&](Seconds so_far) {
                                     return fmt::format("  waiting for the work that {} has submitted, {}",
                                                        target_.text(), seconds_text(so_far));
                                 },
                                 "waiting for the driver's lock to be got or to time out; the process will run on",
                                 [&] { gate_.keep_closed(); });
        if (locked.error != CUDA_SUCCESS) {
            const std::string why =
                cannot_ + "the driver could not lock it: " +
                (locked.error == CUDA_ERROR_NOT_READY ? "work that it has submitted did not end within " +
                                                            options_.timeout + "; try again, or --timeout 1m"
                                                      : driver.text(locked.error));
            if (state_of(driver, pid_).is(CU_PROCESS_STATE_LOCKED)) return give_up(driver, why);
            return ended(interrupted() ? kInterrupted : kRefused, "unchanged", why);
        }
        try {
            return move(driver, locked.time, known);
        } catch (const std::exception &failure) {  // no memory: it must not stay locked for that
            if (state_of(driver, pid_).is(CU_PROCESS_STATE_CHECKPOINTED)) throw;
            return give_up(driver, failure.what());
        }
    }

    int move(const Driver &driver, Seconds lock_time, SuspendFacts &known) {
        // Checks again now that it stands still: it may have allocated since.
        known.gpus = nvml_gpus();
        known.host = host_room(pid_);
        known.driver->state = CU_PROCESS_STATE_RUNNING;  // it is we who locked it
        if (const auto refusal = why_not_suspend(known)) return give_up(driver, refusal->text());
        suspended::Record record;
        for (const GpuState *gpu : gpus_of(**known.gpus, pid_))
            record.push_back({gpu->uuid, gpu->user(pid_)->held.value_or(0), gpu->free});
        if (const auto fault = suspended::write(target_.process, record)) return give_up(driver, cannot_ + *fault);
        if (interrupted()) {
            suspended::remove(target_.process);
            return give_up(driver, "interrupted before anything was moved", kInterrupted);
        }
        // The lock blocks the next calls of CUDA. A thread whose call has just returned still reads results in memory
        // that the checkpoint may move; not so in a nap. (JAX on an H200, in the middle of training, crashed in 4 of 12
        // suspends without this pause and in 2 of 14 with it; the cause of those is not known.)
        if (!options_.nap) std::this_thread::sleep_for(std::chrono::milliseconds(500));
        const Bytes whole = held_by(**known.gpus, pid_);
        CUcheckpointCheckpointArgs arguments{};
        const Made moved =
            make([&] { return driver.cuCheckpointProcessCheckpoint(pid_, &arguments); },
                 [&](Seconds so_far) {
                     const auto now = nvml_gpus();
                     const Bytes left = now ? std::min(whole, held_by(*now, pid_)) : whole;
                     return fmt::format("  {} of {} out, {}", format_human(whole - left), format_human(whole),
                                        seconds_text(so_far));
                 },
                 fmt::format(
                     "half a suspend cannot be stopped: it goes on to its end; curb resume {} brings the process back",
                     pid_),
                 [&] { gate_.keep_closed(); });
        const Left left = moved.error == CUDA_SUCCESS ? Left() : state_of(driver, pid_);
        if (moved.error == CUDA_SUCCESS || left.is(CU_PROCESS_STATE_CHECKPOINTED))
            return done(record, lock_time, moved.time);
        if (left.is(CU_PROCESS_STATE_LOCKED)) suspended::remove(target_.process);
        const bool unsupported = moved.error == CUDA_ERROR_NOT_SUPPORTED;
        return give_up(driver,
                       cannot_ + "the driver could not move it out: " + driver.text(moved.error) +
                           (unsupported ? " (it may have managed memory, or memory shared with other processes)" : ""));
    }

    // After the lock: unlocks the process, and prints `why` and its state.
    int give_up(const Driver &driver, const std::string &why, int status = kRefused) const {
        const Left left = unlock(driver, pid_);
        if (left.is(CU_PROCESS_STATE_RUNNING)) return ended(status, "running", why + "; it runs on");
        return half_done(
            left, why,
            fmt::format("; it could not be unlocked ({}, its state is {})", driver.text(left.error), left.name()),
            std::to_string(pid_));
    }

    // It was out already, by a nap.
    int napped() const {
        const auto record = suspended::read(target_.process).value_or(suspended::Record());
        Bytes bytes = 0;
        for (const suspended::Gpu &gpu : record) bytes += gpu.held;
        if (json_)
            print_line(json::object({{"pid", pid_}, {"suspended", true}, {"bytes", bytes}, {"napped", true}}));
        else
            print(
                fmt::format("suspended {}: it was napping, with {} in host memory\n"
                            "its next CUDA call no longer ends that; curb resume {} brings it back\n",
                            target_.text(), format_human(bytes), pid_));
        return 0;
    }

    int done(const suspended::Record &record, Seconds lock_time, Seconds time) {
        const bool waits = gate_.is_closed();
        gate_.leave_closed();
        const auto now = nvml_gpus();
        const auto left_on = [&](const std::string &uuid) { return now ? held_on(*now, uuid, pid_) : 0; };
        Bytes held = 0, left = 0;
        for (const suspended::Gpu &gpu : record) {
            held += gpu.held;
            left += left_on(gpu.uuid);
        }
        const Bytes out = held - std::min(held, left);
        if (options_.nap) {
            print(fmt::format("out {}\n", out));
            return 0;
        }
        if (json_) {
            const auto gpu_json = [&](const suspended::Gpu &gpu) {
                return json::object({{"uuid", json::text(gpu.uuid)}, {"held", gpu.held}, {"left", left_on(gpu.uuid)}});
            };
            print_line(json::object({{"pid", pid_},
                                     {"suspended", true},
                                     {"bytes", out},
                                     {"left", left},
                                     {"lock_seconds", std::to_string(lock_time.count())},
                                     {"seconds", std::to_string(time.count())},
                                     {"gpus", json::list(record, gpu_json)}}));
            return 0;
        }
        print(
            fmt::format("suspended {}: {} to host memory in {} ({}), {} left on {}\n"
                        "{}; curb resume {} brings it back\n",
                        target_.text(), format_human(out), seconds_text(time), rate_text(out, time), format_human(left),
                        record.size() == 1 ? "the device" : "the devices",
                        waits ? "it waits in its next CUDA call" : "a synchronisation of CUDA would end it now", pid_));
        return 0;
    }

    const SuspendOptions &options_;
    Gate gate_;
};

// ---- resume ----

struct ResumeOptions {
    Selection selection;
    std::optional<std::string> wait, bytes;
    bool sim = false, json = false;

    void declare(Options &takes) {
        selection.declare(takes);
        takes.option("--wait", wait, "DURATION", "Wait so long for room on its GPUs: 30s, 10m");
        takes.option("--bytes", bytes, "SIZE", "What it held of each GPU, if no record of that is left");
        takes.flag("--sim", sim, "On the simulated machine of programs under curb run --sim with CURB_SIM_STATE");
        takes.json(json);
    }
};

class Resuming : Moving {
  public:
    Resuming(const ResumeOptions &options, int pid)
        : Moving("resume", "resumed", pid, options.json), options_(options) {}

    int run() {
        if (options_.wait) {
            const auto wait = policy::parse_duration(*options_.wait);
            if (!wait) return ended(kFailure, "unchanged", "--wait: " + wait.error());
            patience_ = *wait;
        }
        if (options_.bytes) {
            const auto size = policy::parse_size(*options_.bytes);
            if (!size || size->unit != policy::Size::Unit::bytes)
                return ended(kFailure, "unchanged",
                             "--bytes: " + (size ? "a share of which device? Write an amount, as 8GiB" : size.error()));
            bytes_ = size->amount;
        }
        ResumeFacts facts;
        facts.user = ::geteuid();
        facts.target = target_;
        if (const auto refusal = why_not_resume(facts)) return refused(*refusal);
        suspended::remove_stale(target_.process);
        const auto claim = suspended::Claim::take(target_.process);
        if (!claim) return ended(kRefused, "unchanged", cannot_ + claim.error());
        const auto driver = open_driver();
        facts.driver = facts_of(driver, pid_);
        if (const auto refusal = why_not_resume(facts)) return refused(*refusal);
        hold_interrupts();
        if (*facts.driver->state == CU_PROCESS_STATE_LOCKED) {
            complain(target_.text() + " is locked, not suspended: a suspend or resume was cut short; it is unlocked");
            return unlocked(*driver, 0, std::nullopt);
        }
        if (const auto status = wait_for_room(facts)) return *status;
        return move(*driver);
    }

  private:
    // From the record; without one from the process's status; else from --bytes.
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
        } else if (bytes_) {
            const bool listed = !gpus_of(gpus, pid_).empty();  // if not, any GPU may be the one
            for (const GpuState &gpu : gpus)
                if (!listed || gpu.user(pid_)) need(gpu.uuid, *bytes_);
        }
        return out;
    }

    // Returns the exit status if there is too little room. nullopt if there is enough.
    std::optional<int> wait_for_room(ResumeFacts &facts) {
        constexpr auto kNextPoll = std::chrono::milliseconds(200), kNextLook = std::chrono::milliseconds(20);
        Progress progress([&](Seconds so_far) {
            return fmt::format("  waiting for room on the device, {} of {}", seconds_text(so_far),
                               policy::format(patience_));
        });
        for (;;) {
            facts.gpus = nvml_gpus();
            if (*facts.gpus) facts.needs = needs(**facts.gpus);
            const auto refusal = why_not_resume(facts);
            if (!refusal && (patience_.count() == 0 || its_turn(facts))) return std::nullopt;
            if (!refusal) {  // others came first: soon
                if (interrupted()) return ended(kInterrupted, "suspended", cannot_ + "interrupted");
                std::this_thread::sleep_for(kNextLook);
                continue;
            }
            if (interrupted()) return ended(kInterrupted, "suspended", refusal->text() + "; interrupted");
            if (!only_room_is_lacking(facts) || progress.so_far() >= patience_)
                return ended(kRefused, "suspended", refusal->text());
            static_cast<void>(its_turn(facts));  // others see that it waits
            progress.refresh();
            std::this_thread::sleep_for(kNextPoll);
        }
    }

    // True if nobody waits for its GPUs who came first. It joins those that wait, until it is back.
    bool its_turn(const ResumeFacts &facts) {
        if (turns_.empty())
            for (const Need &need : *facts.needs) turns_.emplace_back(control::places(), need.uuid, need.bytes);
        bool has_come = true;
        for (std::size_t i = 0; i < turns_.size(); ++i) {
            const auto &gpus = **facts.gpus;
            const std::string &uuid = (*facts.needs)[i].uuid;
            const auto gpu =
                std::find_if(gpus.begin(), gpus.end(), [&](const GpuState &one) { return one.uuid == uuid; });
            has_come = turns_[i].has_come(gpu == gpus.end() ? 0 : gpu->free) && has_come;
        }
        return has_come;
    }

    int move(const Driver &driver) const {
        const Bytes left = held();
        Bytes whole = 0;
        for (const suspended::Gpu &gpu : suspended::read(target_.process).value_or(suspended::Record()))
            whole += gpu.held;
        const auto back = [&](Bytes now) { return now - std::min(now, left); };
        CUcheckpointRestoreArgs arguments{};
        const Made moved =
            make([&] { return driver.cuCheckpointProcessRestore(pid_, &arguments); },
                 [&](Seconds so_far) {
                     return fmt::format("  {}{} back, {}", format_human(back(held())),
                                        whole == 0 ? "" : " of " + format_human(back(whole)), seconds_text(so_far));
                 },
                 "half a resume cannot be stopped: it goes on to its end");
        const Left state = moved.error == CUDA_SUCCESS ? Left() : state_of(driver, pid_);
        if (moved.error == CUDA_SUCCESS || state.is(CU_PROCESS_STATE_LOCKED))
            return unlocked(driver, back(held()), moved.time);
        const std::string why = cannot_ + "the driver could not move it back: " + driver.text(moved.error);
        if (state.is(CU_PROCESS_STATE_CHECKPOINTED))
            return ended(kRefused, "suspended", why + "; it is still suspended, and curb resume can be tried again");
        return half_done(state, why, "; its state is " + state.name(), "again");
    }

    int unlocked(const Driver &driver, Bytes bytes, std::optional<Seconds> time) const {
        const Left left = unlock(driver, pid_);
        if (!left.is(CU_PROCESS_STATE_RUNNING))
            return half_done(left,
                             cannot_ + "its memory is back, but it could not be unlocked: " + driver.text(left.error),
                             "; its state is " + left.name(), "again");
        suspended::remove(target_.process);
        if (target_.under_curb) open_gate(pid_);
        if (json_)
            print_line(json::object({{"pid", pid_},
                                     {"resumed", true},
                                     {"bytes", bytes},
                                     {"seconds", std::to_string(time.value_or(Seconds(0)).count())}}));
        else if (time)
            print(fmt::format("resumed {}: {} back on the device in {} ({})\n", target_.text(), format_human(bytes),
                              seconds_text(*time), rate_text(bytes, *time)));
        else
            print("unlocked " + target_.text() + ": it runs again\n");
        return 0;
    }

    const ResumeOptions &options_;
    std::vector<control::Turn> turns_;  // of its GPUs; empty: it has not waited
    std::optional<Bytes> bytes_;        // --bytes
    policy::Duration patience_{0};
};

int resume(const ResumeOptions &options) {
    return each("resume", false, options, [&](int pid) { return Resuming(options, pid).run(); });
}

// A nap, for libcurb.so: waits until the process wants to come back ("back" on standard input, or its end), is back, or
// has ended; brings it back as soon as there is room. "leave": it stays suspended, and curb resume brings it back.
int bring_back_when_asked(int pid) {
    std::signal(SIGPIPE, SIG_IGN);  // nobody may be left to read what it says
    const suspended::Process process = inspect(pid).process;
    const auto driver = open_driver();
    for (;;) {
        pollfd input{STDIN_FILENO, POLLIN, 0};
        const bool asked = ::poll(&input, 1, 1000) > 0;
        if (suspended::start_of(pid) != process.start) {
            suspended::remove_stale(process);
            return 0;
        }
        if (driver && state_of(*driver, pid).is(CU_PROCESS_STATE_RUNNING)) return 0;
        if (!asked) continue;
        char first = 0;
        const bool is_told = ::read(STDIN_FILENO, &first, 1) == 1;
        if (is_told && first == 'l') return 0;
        ResumeOptions options;
        options.wait = "24h";
        const int status = Resuming(options, pid).run();
        if (is_told || status == 0) return status;  // the process sees that, and starts another helper
        std::this_thread::sleep_for(std::chrono::milliseconds(100));  // it is about to end
    }
}

int suspend(const SuspendOptions &options) {
    return each("suspend", true, options, [&](int pid) {
        const int status = Suspending(options, pid).run();
        return status == 0 && options.nap ? bring_back_when_asked(pid) : status;
    });
}

}  // namespace

extern const Command kSuspend{
    .name = "suspend",
    .line = "Move a whole process out of its GPUs into host memory",
    .help = R"(
The process keeps its pid, files and host memory; its CUDA calls wait until curb resume. All that it holds of its GPUs goes
to host memory, but for a few MiB. Takes a driver of 570 or newer and the process's user, or root. Refused: MIG, MPS,
managed memory, one process of several that work together, too little host memory. --force goes on where it is only
guessed that it might go wrong: a process that is not under curb, or a library whose calls do not come through curb: a
synchronisation ends such a process while it is suspended; a launcher's variables without NCCL.

Exit status 0: suspended, 1: not, and it runs as before, 2: in a state that standard error names, 125: wrong arguments,
130: not, because of Ctrl-C. Once memory is on its way out, Ctrl-C does not stop it.

Several processes are moved one after the other.

Examples:
  curb suspend 4711
  curb suspend --user bob --gpu nvml:1        bob's processes on that GPU
  curb suspend --json 4711 | jq .bytes)",
    .takes = takes<SuspendOptions, suspend>,
};

extern const Command kResume{
    .name = "resume",
    .line = "Bring a suspended process back",
    .help = R"(
Refused while a GPU has less room than the process held there: the driver would block it for good. Others who take that
room at the same moment cannot be kept out. A process that was left locked by a suspend that was cut short is unlocked.

Exit status 0: it runs, 1: not, and it is as before, 2: in a state that standard error names, 125: wrong arguments,
130: not, because of Ctrl-C.

Examples:
  curb resume 4711
  curb resume --user bob
  curb resume --wait 10m 4711                 as soon as there is room
  curb resume --bytes 8GiB 4711               when the record of what it held is lost)",
    .takes = takes<ResumeOptions, resume>,
};

}  // namespace curb::cli
