// `curb suspend` moves a process out of its GPUs into host memory. It first checks everything that can go wrong. Once
// it has locked the process, every way out leaves it running or suspended, never locked, as far as the driver allows.
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <thread>

#include "command/command.hpp"
#include "control/suspended.hpp"
#include "policy/values/duration.hpp"
#include "suspend/companion.hpp"
#include "suspend/gate.hpp"
#include "suspend/moving.hpp"
#include "terminal/format.hpp"
#include "terminal/json.hpp"
#include "terminal/terminal.hpp"

namespace curb::cli {
namespace {

namespace suspended = control::suspended;
using policy::Bytes;
using policy::format_human;

struct SuspendOptions : MoveOptions {
    const char *name = "suspend";
    std::string timeout = "10s";
    bool force = false, until_used = false, nap = false;
    std::vector<std::string> host_memory;

    void declare(Options &takes) {
        selection.declare(takes);
        takes.option("--timeout", timeout, "DURATION", "How long the process's submitted work may take to end [10s]");
        takes.flag("--until-used", until_used, "Its next CUDA call brings it back: a nap, begun now");
        takes.flag("--force", force, "Skip the checks that only suspect a problem");
        takes.sim(sim);
        takes.json(json);
        takes.hidden_flag("--nap", nap);
        takes.hidden_options("--host-memory", host_memory);
    }
    [[nodiscard]] std::vector<policy::Size> most_host() const {
        std::vector<policy::Size> out;
        for (const std::string &text : host_memory)
            if (const auto size = policy::parse_size(text)) out.push_back(*size);
        return out;
    }
};

class Suspending : Moving {
  public:
    // `patience`: that of --timeout.
    Suspending(const SuspendOptions &options, policy::Duration patience, int pid, std::vector<std::string> *answers)
        : Moving(options.name, "suspended", pid, answers), options_(options), patience_(patience), gate_(pid) {}

    [[nodiscard]] const suspended::Process &process() const { return target_.process; }

    int run() {
        if (options_.until_used) return begin_nap_now();
        SuspendFacts known;
        known.user = ::geteuid();
        known.target = target_;
        known.force = options_.force;
        // First the checks without the driver. A napping process does not block its companions: its next call brings
        // it back.
        if (!options_.nap)
            if (const auto gpus = nvml_gpus()) known.companion = companion_of(target_, *gpus);
        if (const auto refusal = why_not_suspend(known)) return refused(*refusal);
        suspended::remove_stale(target_.process);
        if (target_.under_curb && !options_.nap) {
            if (is_kept_out(pid_)) return ended(kRefused, "unchanged", cannot_ + kSuspended);
            light_ = gate_.move_lightly(patience_);
        }
        // A nap that begins or ends has the claim for a moment; another nap comes again by itself.
        const auto claim = suspended::Claim::take(target_.process, options_.nap ? policy::Duration{} : patience_);
        if (!claim) return ended(kRefused, "unchanged", cannot_ + claim.error());
        const auto driver = open_driver();
        known.driver = facts_of(driver, pid_);
        if (target_.under_curb && known.driver->state == CU_PROCESS_STATE_CHECKPOINTED && gate_.turn_nap_into_suspend())
            return napped();
        known.gpus = nvml_gpus();
        known.books = books_of(target_);
        known.host = control::host_room(pid_);
        known.is_nap = options_.nap;
        known.most_host = options_.most_host();
        if (const auto refusal = why_not_suspend(known)) return stays(kRefused, "unchanged", refusal->reason());
        if (target_.under_curb && !options_.nap)  // for a nap the process has closed its gate itself
            if (const auto why = gate_.close(patience_, options_.force)) return stays(kRefused, "unchanged", *why);
        return lock(*driver, known);
    }

  private:
    // Makes the process move itself, as for a nap by its policy.
    int begin_nap_now() {
        const auto bytes = begin_nap(pid_, patience_);
        if (!bytes) return ended(kRefused, "unchanged", cannot_ + bytes.error());
        return naps(*bytes, fmt::format("{} naps: {} in host memory\nits next CUDA call brings it back\n",
                                        target_.text(), format_human(*bytes)));
    }

    int lock(const Driver &driver, SuspendFacts &known) {
        hold_interrupts();
        // A nap begins at rest. Work that then does not end may be a function of the program that needs a mutex, whose
        // owner waits at the gate.
        constexpr policy::Duration kOfNap{1000};
        const policy::Duration patience = options_.nap ? std::min(patience_, kOfNap) : patience_;
        constexpr std::int64_t kLongest = std::numeric_limits<unsigned>::max();
        CUcheckpointLockArgs arguments{};
        arguments.timeoutMs = static_cast<unsigned>(std::min<std::int64_t>(patience.count(), kLongest));
        const Made locked = make([&] { return driver.cuCheckpointProcessLock(pid_, &arguments); },
                                 [&](Seconds so_far) {
                                     return fmt::format("  waiting for the work that {} has submitted, {}",
                                                        target_.text(), seconds_text(so_far));
                                 },
                                 "waiting for the driver's lock to be got or to time out; the process will run on",
                                 [&] { gate_.keep_closed(); });
        if (locked.error != CUDA_SUCCESS) {
            const std::string why =
                "the driver could not lock it: " + (locked.error == CUDA_ERROR_NOT_READY
                                                        ? "work that it has submitted did not end within " +
                                                              policy::format(patience) + "; try again, or --timeout 1m"
                                                        : driver.text(locked.error));
            if (state_of(driver, pid_).is(CU_PROCESS_STATE_LOCKED)) return give_up(driver, why);
            return stays(interrupted() ? kInterrupted : kRefused, "unchanged", why);
        }
        try {
            return move(driver, locked.time, known);
        } catch (const std::exception &failure) {  // out of memory: the process must not stay locked
            if (state_of(driver, pid_).is(CU_PROCESS_STATE_CHECKPOINTED)) throw;
            return give_up(driver, failure.what());
        }
    }

    int move(const Driver &driver, Seconds lock_time, SuspendFacts &known) {
        // Check again, now that the process is locked: it may have allocated since, or be another one.
        if (!is_the_same()) return give_up(driver, kAnother);
        known.gpus = nvml_gpus();
        known.host = control::host_room(pid_);
        known.driver->state = CU_PROCESS_STATE_RUNNING;  // we have locked it
        if (const auto refusal = why_not_suspend(known)) return give_up(driver, refusal->reason());
        const suspended::Record record = record_of(**known.gpus);
        if (const auto fault = suspended::write(target_.process, record)) return give_up(driver, *fault);
        if (interrupted()) {
            suspended::remove(target_.process);
            return give_up(driver, "interrupted before anything was moved", kInterrupted);
        }
        // The gate blocks the next CUDA calls. But a thread whose call has just returned may still read results in
        // memory that the checkpoint moves, except in a nap. So pause. (JAX on an H200, in the middle of training:
        // without the gate 4 of 12 suspends crashed it without this pause, and 2 of 14 with it; with gate and pause
        // none of 100.)
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
        const FoundState state = moved.error == CUDA_SUCCESS ? FoundState() : state_of(driver, pid_);
        if (moved.error == CUDA_SUCCESS || state.is(CU_PROCESS_STATE_CHECKPOINTED))
            return done(record, lock_time, moved.time);
        if (state.is(CU_PROCESS_STATE_LOCKED)) suspended::remove(target_.process);
        const bool unsupported = moved.error == CUDA_ERROR_NOT_SUPPORTED;
        return give_up(driver,
                       "the driver could not move it out: " + driver.text(moved.error) +
                           (unsupported ? " (it may have managed memory, or memory shared with other processes)" : ""));
    }

    // Unlocks the process and prints `why` and its state. Returns the exit status.
    int give_up(const Driver &driver, const std::string &why, int status = kRefused) {
        const FoundState state = unlock(driver, pid_);
        if (state.is(CU_PROCESS_STATE_RUNNING)) return stays(status, "running", why);
        return half_done(state, cannot_ + why + "; it could not be unlocked: " + driver.text(state.error));
    }

    // The driver has not moved the process: it runs on, or what it has moved itself is all that is out. Prints `why`.
    int stays(int status, const std::string &state, const std::string &why) {
        if (!light_ || status == kInterrupted)  // the gate opens, and what is out comes back
            return ended(status, state, cannot_ + why + (state == "running" ? "; it runs on" : ""));
        hold_interrupts();  // a signal must not end curb between the record and the gate
        const auto gpus = nvml_gpus();
        const auto record = record_of(gpus ? *gpus : std::vector<GpuState>());  // commands for many processes find it
        if (const auto fault = suspended::write(target_.process, record))
            return ended(kRefused, state, cannot_ + *fault);
        gate_.leave_closed();
        gate_.report(0);
        const Bytes out = light_->light.bytes + light_->zeros;
        std::optional<Bytes> left;  // if NVML lists the process
        if (gpus && !gpus_of(*gpus, pid_).empty()) left = held_by(*gpus, pid_);
        if (answer({{"pid", pid_},
                    {"suspended", true},
                    {"bytes", out},
                    {"left", left},
                    {"light_bytes", out},
                    {"light_seconds", std::to_string(light_time().count())},
                    {"stays", json::text(why)}}))
            return 0;
        print(
            fmt::format("suspended {}: {}\nthe driver has not moved the rest{}: {}\n"
                        "its calls of CUDA wait; curb resume {} brings it back\n",
                        target_.text(), light_text(), left ? ", " + format_human(*left) : "", why, pid_));
        return 0;
    }
    [[nodiscard]] suspended::Record record_of(const std::vector<GpuState> &gpus) const {
        suspended::Record record;
        for (const GpuState *gpu : gpus_of(gpus, pid_))
            record.push_back({gpu->uuid, gpu->user(pid_)->held.value_or(0), gpu->free});
        if (!record.empty()) return record;
        if (const auto books = ask_books(target_))  // where NVML does not list it
            for (const control::GpuStatus &gpu : books->gpus)
                if (gpu.held != 0) record.push_back({gpu.uuid, gpu.held, ~Bytes{0}});
        return record;
    }
    [[nodiscard]] Seconds light_time() const { return std::chrono::milliseconds(light_ ? light_->light.out_ms : 0); }
    // "8 GiB to host memory by curb in 0.2 s (40 GiB/s)"
    [[nodiscard]] std::string light_text() const {
        const Bytes out = light_->light.bytes + light_->zeros;
        return fmt::format("{} to host memory by curb in {} ({})", format_human(out), seconds_text(light_time()),
                           rate_text(out, light_time()));
    }

    static constexpr const char *kSuspended = "it is suspended already; curb resume brings it back";

    // The process was out already, by a nap.
    int napped() const {
        const Bytes bytes = recorded();
        return naps(bytes, fmt::format("suspended {}: it was napping, with {} in host memory\n"
                                       "its next CUDA call no longer ends that; curb resume {} brings it back\n",
                                       target_.text(), format_human(bytes), pid_));
    }

    int naps(Bytes bytes, const std::string &text) const {
        if (!answer({{"pid", pid_}, {"suspended", true}, {"bytes", bytes}, {"napped", true}})) print(text);
        return 0;
    }

    int done(const suspended::Record &record, Seconds lock_time, Seconds time) {
        const bool waits = gate_.is_closed();
        if (waits) gate_.leave_closed();
        const auto now = nvml_gpus();
        const auto left_on = [&](const std::string &uuid) { return now ? held_on(*now, uuid, pid_) : 0; };
        Bytes held = 0, left = 0;
        for (const suspended::Gpu &gpu : record) {
            held += gpu.held;
            left += left_on(gpu.uuid);
        }
        const Bytes out = held - std::min(held, left);
        gate_.report(out);
        if (options_.nap) {
            print(fmt::format("out {}\n", out));
            return 0;
        }
        const auto gpu_json = [&](const suspended::Gpu &gpu) {
            return json::object({{"uuid", json::text(gpu.uuid)}, {"held", gpu.held}, {"left", left_on(gpu.uuid)}});
        };
        const Bytes light = light_ ? light_->light.bytes + light_->zeros : 0;
        if (answer({{"pid", pid_},
                    {"suspended", true},
                    {"bytes", out + light},
                    {"left", left},
                    {"light_bytes", light},
                    {"light_seconds", std::to_string(light_time().count())},
                    {"lock_seconds", std::to_string(lock_time.count())},
                    {"seconds", std::to_string(time.count())},
                    {"gpus", json::list(record, gpu_json)}}))
            return 0;
        print(
            fmt::format("suspended {}: {}{} to host memory{} in {} ({}), {} left on {}\n"
                        "{}; curb resume {} brings it back\n",
                        target_.text(), light_ ? light_text() + ", " : "", format_human(out),
                        light_ ? " by the driver" : "", seconds_text(time), rate_text(out, time), format_human(left),
                        record.size() == 1 ? "the device" : "the devices",
                        waits ? "it waits in its next CUDA call" : "a synchronisation of CUDA would end it now", pid_));
        return 0;
    }

    const SuspendOptions &options_;
    const policy::Duration patience_;
    Gate gate_;
    std::optional<control::NapStatus> light_;  // what curb itself has moved
};

int suspend(const SuspendOptions &options) {
    const auto patience = policy::parse_duration(options.timeout);
    if (!patience) return failed("--timeout: " + patience.error());
    if (patience->count() == 0) return failed("--timeout: 0 would wait for ever; give a time");
    return each(options.name, true, options, [&](int pid, auto *answers) {
        Suspending suspending(options, *patience, pid, answers);
        const int status = suspending.run();
        return status == 0 && options.nap ? bring_back_when_asked(suspending.process()) : status;
    });
}

struct NapOptions : SuspendOptions {
    void declare(Options &takes) {
        selection.declare(takes);
        takes.option("--timeout", timeout, "DURATION", "How long the process may take to leave its GPUs [10s]");
        takes.sim(sim);
        takes.json(json);
    }
};

int nap(const NapOptions &typed) {
    SuspendOptions options = typed;
    options.name = "nap";
    options.until_used = true;
    return suspend(options);
}

}  // namespace

extern const Command kNap{
    .name = "nap",
    .line = "Move a process out of its GPUs until its next CUDA call",
    .help = R"(
The process moves itself into host memory, as with suspend.idle in a policy, and its next CUDA call brings it back: the
same as curb suspend --until-used. Refused while a call is under way. See curb suspend --help.

Exit status 0: it naps, 1: not, and it runs as before, 125: wrong arguments, or the answer could not be written.

Examples:
  curb nap 4711
  curb nap --user bob --gpu 1                 bob's processes on that GPU)",
    .takes = takes<NapOptions, nap>,
};

extern const Command kSuspend{
    .name = "suspend",
    .line = "Move a whole process out of its GPUs into host memory",
    .help = R"(
The process keeps its pid, files and host memory; its CUDA calls wait until curb resume. All that it holds of its GPUs goes
to host memory, but for a few MiB. Needs driver 570 or newer, and the process's user or root. Refused: MIG, MPS,
managed memory, one process of several that work together, too little host memory. Of an idle process whose policy
has naps curb itself moves a part first, and that alone where the driver cannot move the rest. --force skips the checks
that only suspect a problem: a launcher's variables without NCCL; a process that is not under curb, or has a library whose
calls bypass curb. The driver ends such a process if it synchronises while it is suspended.

Exit status 0: suspended, 1: not, and it runs as before, 2: in a state that standard error names, 125: wrong arguments,
or the answer could not be written, 130: not, because of Ctrl-C. Once memory is on its way out, Ctrl-C does not stop it.

--until-used begins a nap, as curb nap does.

Several processes are moved one after the other.

Examples:
  curb suspend 4711
  curb suspend --user bob --gpu 1             bob's processes on that GPU
  curb suspend --until-used 4711              until its next CUDA call
  curb suspend --json 4711 | jq '.[].bytes')",
    .takes = takes<SuspendOptions, suspend>,
};

}  // namespace curb::cli
