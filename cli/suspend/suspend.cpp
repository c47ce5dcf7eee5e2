// `curb suspend`: moves a process out of its GPUs into host memory. It checks everything that can go wrong first. Once
// it has locked the process, every way out leaves it running or suspended, never locked, as far as the driver allows.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <thread>

#include "checkpoint.hpp"
#include "command.hpp"
#include "control/suspended.hpp"
#include "guard_facts.hpp"
#include "json.hpp"
#include "policy/duration.hpp"
#include "terminal.hpp"

namespace curb::cli {
namespace {

struct SuspendOptions {
    int pid = 0;
    std::string timeout = "10s";
    bool force = false, json = false;

    void declare(Options &takes) {
        takes.pid(pid, "The process");
        takes.option("--timeout", timeout, "DURATION", "How long the process's submitted work may take to end [10s]");
        takes.flag("--force", force, "Go on where it is only guessed that it might go wrong");
        takes.json(json);
    }
};

constexpr std::chrono::milliseconds kSettle{500};

namespace suspended = control::suspended;
using policy::Bytes;
using policy::format_human;
using Clock = std::chrono::steady_clock;

class Suspending {
  public:
    explicit Suspending(const SuspendOptions &options) : options_(options), target_(look_at(options.pid)) {}
    int run();

  private:
    [[nodiscard]] int ended(int status, const std::string &state, const std::string &message) const {
        return not_done("suspended", options_.pid, options_.json, status, state, message);
    }
    [[nodiscard]] int refused(const Refusal &refusal) const { return ended(kRefused, "unchanged", refusal.text()); }
    [[nodiscard]] SuspendFacts what_proc_shows() const;
    [[nodiscard]] SuspendFacts facts(const Machine &machine) const;
    int move(const Machine &machine, unsigned patience, SuspendFacts known);
    int move_locked(const Machine &machine, Seconds lock_time, SuspendFacts known);
    // After the lock: unlocks the process, and prints `why` and its state.
    int give_up(const Machine &machine, const std::string &why, int status = kRefused) const;
    int done(const Machine &machine, const suspended::Record &record, Seconds lock_time, Seconds time) const;

    const SuspendOptions &options_;
    const Target target_;
};

SuspendFacts Suspending::what_proc_shows() const {
    SuspendFacts facts;
    facts.user = ::geteuid();
    facts.target = target_;
    facts.force = options_.force;
    return facts;
}

SuspendFacts Suspending::facts(const Machine &machine) const {
    SuspendFacts facts = what_proc_shows();
    facts.driver = facts_of(machine, options_.pid);
    facts.gpus = machine.gpus();
    facts.books = books_of(target_);
    facts.host = host_room(options_.pid);
    if (*facts.gpus) facts.companion = companion_of(target_, **facts.gpus);
    return facts;
}

int Suspending::run() {
    const auto patience = policy::parse_duration(options_.timeout);
    if (!patience || patience->count() == 0)
        return ended(kFailure, "unchanged",
                     "--timeout: " + (patience ? "the driver would wait for ever; say how long" : patience.error()));
    // First the checks that do not need the driver.
    if (const auto refusal = why_not_suspend(what_proc_shows())) return refused(*refusal);
    suspended::remove_stale(target_.process);
    const auto claim = suspended::Claim::take(target_.process);
    if (!claim) return ended(kRefused, "unchanged", "cannot suspend " + target_.text() + ": " + claim.error());
    const Machine machine = open_machine();
    SuspendFacts known = facts(machine);
    if (const auto refusal = why_not_suspend(known)) return refused(*refusal);
    const auto longest = std::numeric_limits<unsigned>::max();
    return move(machine, static_cast<unsigned>(std::min<std::int64_t>(patience->count(), longest)), std::move(known));
}

int Suspending::move(const Machine &machine, unsigned patience, SuspendFacts known) {
    const Driver &driver = *machine.driver;
    hold_interrupts();
    const auto start = Clock::now();
    CUresult error{};
    {
        Progress progress([&] {
            return "  waiting for the work that " + target_.text() + " has submitted, " +
                   seconds_text(Clock::now() - start);
        });
        CUcheckpointLockArgs arguments{};
        arguments.timeoutMs = patience;
        error = make([&] { return driver.cuCheckpointProcessLock(options_.pid, &arguments); }, progress,
                     "waiting for the driver's lock to be got or to time out; the process will run on");
    }
    if (error != CUDA_SUCCESS) {
        const Left left = state_of(driver, options_.pid);
        const std::string why = "cannot suspend " + target_.text() + ": the driver could not lock it: ";
        const std::string cause = error == CUDA_ERROR_NOT_READY ? "work that it has submitted did not end within " +
                                                                      options_.timeout + "; try again, or --timeout 1m"
                                                                : driver.text(error);
        if (left.known && left.state == CU_PROCESS_STATE_LOCKED) return give_up(machine, why + cause);
        return ended(interrupted() ? kInterrupted : kRefused, "unchanged", why + cause);
    }
    const Seconds lock_time = Clock::now() - start;
    try {
        return move_locked(machine, lock_time, std::move(known));
    } catch (const std::exception &failure) {  // no memory: it must not stay locked for that
        const Left left = state_of(driver, options_.pid);
        if (left.known && left.state == CU_PROCESS_STATE_CHECKPOINTED) throw;
        return give_up(machine, failure.what());
    }
}

int Suspending::move_locked(const Machine &machine, Seconds lock_time, SuspendFacts known) {
    const Driver &driver = *machine.driver;
    // Checks again now that it stands still: it may have allocated since.
    known.gpus = machine.gpus();
    known.host = host_room(options_.pid);
    known.driver->state = CU_PROCESS_STATE_RUNNING;  // it is we who locked it
    if (const auto refusal = why_not_suspend(known)) return give_up(machine, refusal->text());
    suspended::Record record;
    for (const GpuState *gpu : gpus_of(**known.gpus, options_.pid))
        record.push_back({gpu->uuid, gpu->user(options_.pid)->held.value_or(0), gpu->free});
    if (const auto fault = suspended::write(target_.process, record))
        return give_up(machine, "cannot suspend " + target_.text() + ": " + *fault);
    if (interrupted()) {
        suspended::remove(target_.process);
        return give_up(machine, "interrupted before anything was moved", kInterrupted);
    }
    // The lock blocks the next calls of CUDA. A thread whose call has just returned still reads results in memory that
    // the checkpoint may move. (JAX on an H200, in the middle of training, crashed in 4 of 12 suspends without this
    // pause and in 2 of 14 with it; the cause of those is not known.)
    std::this_thread::sleep_for(kSettle);
    const Bytes whole = held_by(**known.gpus, options_.pid);
    const auto start = Clock::now();
    CUresult error{};
    {
        Progress progress([&] {
            const auto now = machine.gpus();
            const Bytes left = now ? std::min(whole, held_by(*now, options_.pid)) : whole;
            return "  " + format_human(whole - left) + " of " + format_human(whole) + " out, " +
                   seconds_text(Clock::now() - start);
        });
        CUcheckpointCheckpointArgs arguments{};
        error = make([&] { return driver.cuCheckpointProcessCheckpoint(options_.pid, &arguments); }, progress,
                     "half a suspend cannot be stopped: it goes on to its end; curb resume " +
                         std::to_string(options_.pid) + " brings the process back");
    }
    const Seconds time = Clock::now() - start;
    if (error == CUDA_SUCCESS) return done(machine, record, lock_time, time);
    const Left left = state_of(driver, options_.pid);
    if (left.known && left.state == CU_PROCESS_STATE_CHECKPOINTED) return done(machine, record, lock_time, time);
    if (left.known && left.state == CU_PROCESS_STATE_LOCKED) suspended::remove(target_.process);
    return give_up(
        machine,
        "cannot suspend " + target_.text() + ": the driver could not move it out: " + driver.text(error) +
            (error == CUDA_ERROR_NOT_SUPPORTED ? " (it may have managed memory, or memory shared with other processes)"
                                               : ""));
}

int Suspending::give_up(const Machine &machine, const std::string &why, int status) const {
    const std::string pid = std::to_string(options_.pid);
    const Left left = unlock(*machine.driver, options_.pid);
    if (left.known && left.state == CU_PROCESS_STATE_RUNNING) return ended(status, "running", why + "; it runs on");
    if (suspended::start_of(options_.pid) != target_.process.start)
        return ended(kHalfDone, "ended", why + "; the process has ended");
    const std::string state = left.known ? state_name(left.state) : "unknown";
    return ended(kHalfDone, state,
                 why + "; it could not be unlocked (" + machine.driver->text(left.error) + ", its state is " + state +
                     ")" +
                     (left.known && left.state == CU_PROCESS_STATE_FAILED
                          ? ": the driver has given it up, and all that is left is to end it (kill -9)"
                          : ": try curb resume " + pid));
}

int Suspending::done(const Machine &machine, const suspended::Record &record, Seconds lock_time, Seconds time) const {
    const auto now = machine.gpus();
    const auto left_on = [&](const std::string &uuid) { return now ? held_on(*now, uuid, options_.pid) : 0; };
    Bytes held = 0, left = 0;
    for (const suspended::Gpu &gpu : record) {
        held += gpu.held;
        left += left_on(gpu.uuid);
    }
    const Bytes out = held - std::min(held, left);
    if (options_.json) {
        const auto gpu_json = [&](const suspended::Gpu &gpu) {
            return json::object({{"uuid", json::text(gpu.uuid)}, {"held", gpu.held}, {"left", left_on(gpu.uuid)}});
        };
        std::printf("%s\n", json::object({{"pid", options_.pid},
                                          {"suspended", true},
                                          {"bytes", out},
                                          {"left", left},
                                          {"lock_seconds", std::to_string(lock_time.count())},
                                          {"seconds", std::to_string(time.count())},
                                          {"gpus", json::list(record, gpu_json)}})
                                .c_str());
        return 0;
    }
    std::printf("suspended %s: %s to host memory in %s (%s), %s left on %s\n", target_.text().c_str(),
                format_human(out).c_str(), seconds_text(time).c_str(), rate_text(out, time).c_str(),
                format_human(left).c_str(), record.size() == 1 ? "the device" : "the devices");
    std::printf("it waits in its next CUDA call; curb resume %d brings it back\n", options_.pid);
    return 0;
}

int suspend(const SuspendOptions &options) { return Suspending(options).run(); }

}  // namespace

extern const Command kSuspend{
    .name = "suspend",
    .line = "Move a whole process out of its GPUs into host memory",
    .help = R"(
The process keeps its pid, files and host memory; its CUDA calls wait until curb resume. All that it holds of its GPUs goes
to host memory, but for a few MiB. Takes a driver of 570 or newer and the process's user, or root. Refused: MIG, MPS,
managed memory, one process of several that work together, too little host memory. --force goes on where it is only
guessed that it might go wrong: managed memory of a process that is not under curb, a launcher's variables without NCCL,
XLA (JAX, TensorFlow), whose threads were seen to crash in the middle of training (2 of 14).

Exit status 0: suspended, 1: not, and it runs as before, 2: in a state that standard error tells of, 125: wrong arguments,
130: not, because of Ctrl-C. Once memory is on its way out, Ctrl-C does not stop it.

Examples:
  curb suspend 4711
  curb suspend --json 4711 | jq .bytes)",
    .takes = takes<SuspendOptions, suspend>,
};

}  // namespace curb::cli
