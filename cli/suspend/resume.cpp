// `curb resume`: moves a process back from host memory. With too little free memory the driver blocks the process for
// good, so curb checks it right before the call. Another process can still take the memory in between.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
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

namespace suspended = control::suspended;
using policy::Bytes;
using policy::format_human;
using Clock = std::chrono::steady_clock;

struct ResumeOptions {
    int pid = 0;
    std::optional<std::string> wait, bytes;
    bool json = false;

    void declare(Options &takes) {
        takes.pid(pid, "The process");
        takes.option("--wait", wait, "DURATION", "Wait so long for room on its GPUs: 30s, 10m");
        takes.option("--bytes", bytes, "SIZE", "What it held of each GPU, if no record of that is left");
        takes.json(json);
    }
};

constexpr auto kNextLook = std::chrono::milliseconds(200);

class Resuming {
  public:
    explicit Resuming(const ResumeOptions &options) : options_(options), target_(look_at(options.pid)) {}
    int run();

  private:
    [[nodiscard]] int ended(int status, const std::string &state, const std::string &message) const {
        return not_done("resumed", options_.pid, options_.json, status, state, message);
    }
    [[nodiscard]] std::vector<Need> needs(const std::vector<GpuState> &gpus) const;
    void look(const Machine &machine, ResumeFacts &facts) const;
    // Returns the exit status if there is too little room. nullopt if there is enough.
    std::optional<int> wait_for_room(const Machine &machine, ResumeFacts &facts) const;
    int move(const Machine &machine) const;
    int unlocked(const Machine &machine, Bytes bytes, std::optional<Seconds> time) const;

    const ResumeOptions &options_;
    const Target target_;
    std::optional<Bytes> bytes_;  // --bytes
    policy::Duration patience_{0};
};

// From the record; without one from the process's status; else from --bytes.
std::vector<Need> Resuming::needs(const std::vector<GpuState> &gpus) const {
    const auto left_on = [&](const std::string &uuid) { return held_on(gpus, uuid, options_.pid); };
    std::vector<Need> out;
    if (const auto record = suspended::read(target_.process)) {
        for (const suspended::Gpu &gpu : *record)
            out.push_back({gpu.uuid, room_for(gpu.held, gpu.free, left_on(gpu.uuid))});
        return out;
    }
    if (const auto books = ask_books(target_)) {
        for (const control::GpuStatus &gpu : books->gpus)
            if (gpu.held != 0) out.push_back({gpu.uuid, room_for(gpu.held, ~Bytes{0}, left_on(gpu.uuid))});
        return out;
    }
    if (!bytes_) return out;
    const bool listed = !gpus_of(gpus, options_.pid).empty();  // if not, any GPU may be the one
    for (const GpuState &gpu : gpus)
        if (!listed || gpu.user(options_.pid))
            out.push_back({gpu.uuid, room_for(*bytes_, ~Bytes{0}, left_on(gpu.uuid))});
    return out;
}

void Resuming::look(const Machine &machine, ResumeFacts &facts) const {
    facts.gpus = machine.gpus();
    if (*facts.gpus) facts.needs = needs(**facts.gpus);
}

int Resuming::run() {
    if (options_.wait) {
        const auto wait = policy::parse_duration(*options_.wait);
        if (!wait) return ended(kFailure, "unchanged", "--wait: " + wait.error());
        patience_ = *wait;
    }
    if (options_.bytes) {
        const auto size = policy::parse_size(*options_.bytes);
        if (!size || size->unit != policy::Size::Unit::bytes)
            return ended(kFailure, "unchanged",
                         "--bytes: " + (size ? "a share of which device? say it as a size: 8GiB" : size.error()));
        bytes_ = size->amount;
    }
    ResumeFacts facts;
    facts.user = ::geteuid();
    facts.target = target_;
    if (const auto refusal = why_not_resume(facts)) return ended(kRefused, "unchanged", refusal->text());
    suspended::remove_stale(target_.process);
    const auto claim = suspended::Claim::take(target_.process);
    if (!claim) return ended(kRefused, "unchanged", "cannot resume " + target_.text() + ": " + claim.error());
    const Machine machine = open_machine();
    facts.driver = facts_of(machine, options_.pid);
    if (const auto refusal = why_not_resume(facts)) return ended(kRefused, "unchanged", refusal->text());
    hold_interrupts();
    if (*facts.driver->state == CU_PROCESS_STATE_LOCKED) {
        complain(target_.text() + " is locked, not suspended: a suspend or resume was cut short; it is unlocked");
        return unlocked(machine, 0, std::nullopt);
    }
    if (const auto status = wait_for_room(machine, facts)) return *status;
    return move(machine);
}

std::optional<int> Resuming::wait_for_room(const Machine &machine, ResumeFacts &facts) const {
    const auto start = Clock::now();
    Progress progress([&] {
        return "  waiting for room on the device, " + seconds_text(Clock::now() - start) + " of " +
               policy::format(patience_);
    });
    for (;;) {
        look(machine, facts);
        const auto refusal = why_not_resume(facts);
        if (!refusal) return std::nullopt;
        if (interrupted()) return ended(kInterrupted, "suspended", refusal->text() + "; interrupted");
        if (!only_room_is_lacking(facts) || Clock::now() - start >= patience_)
            return ended(kRefused, "suspended", refusal->text());
        progress.look();
        std::this_thread::sleep_for(kNextLook);
    }
}

int Resuming::move(const Machine &machine) const {
    const Driver &driver = *machine.driver;
    const auto before = machine.gpus();
    const auto held = [&](const auto &gpus) { return gpus ? held_by(*gpus, options_.pid) : Bytes{0}; };
    const Bytes left = held(before);
    const auto record = suspended::read(target_.process);
    Bytes whole = 0;
    if (record)
        for (const suspended::Gpu &gpu : *record) whole += gpu.held;
    const auto start = Clock::now();
    CUresult error{};
    {
        Progress progress([&] {
            const Bytes now = held(machine.gpus());
            return "  " + format_human(now - std::min(now, left)) +
                   (whole == 0 ? "" : " of " + format_human(whole - std::min(whole, left))) + " back, " +
                   seconds_text(Clock::now() - start);
        });
        CUcheckpointRestoreArgs arguments{};
        error = make([&] { return driver.cuCheckpointProcessRestore(options_.pid, &arguments); }, progress,
                     "half a resume cannot be stopped: it goes on to its end");
    }
    const Seconds time = Clock::now() - start;
    const Bytes now = held(machine.gpus());
    if (error == CUDA_SUCCESS) return unlocked(machine, now - std::min(now, left), time);
    const Left state = state_of(driver, options_.pid);
    const std::string why =
        "cannot resume " + target_.text() + ": the driver could not move it back: " + driver.text(error);
    if (state.known && state.state == CU_PROCESS_STATE_LOCKED)
        return unlocked(machine, now - std::min(now, left), time);
    if (state.known && state.state == CU_PROCESS_STATE_CHECKPOINTED)
        return ended(kRefused, "suspended", why + "; it is still suspended, and curb resume can be tried again");
    if (suspended::start_of(options_.pid) != target_.process.start)
        return ended(kHalfDone, "ended", why + "; the process has ended");
    const std::string name = state.known ? state_name(state.state) : "unknown";
    return ended(kHalfDone, name,
                 why + "; its state is " + name +
                     (name == "failed" ? ": the driver has given it up, and all that is left is to end it (kill -9)"
                                       : ": try curb resume again"));
}

int Resuming::unlocked(const Machine &machine, Bytes bytes, std::optional<Seconds> time) const {
    const Left left = unlock(*machine.driver, options_.pid);
    if (!left.known || left.state != CU_PROCESS_STATE_RUNNING) {
        const std::string name = left.known ? state_name(left.state) : "unknown";
        return ended(kHalfDone, name,
                     "cannot resume " + target_.text() + ": its memory is back, but it could not be unlocked: " +
                         machine.driver->text(left.error) + "; its state is " + name + ": try curb resume again");
    }
    suspended::remove(target_.process);
    if (options_.json) {
        std::printf("%s\n", json::object({{"pid", options_.pid},
                                          {"resumed", true},
                                          {"bytes", bytes},
                                          {"seconds", std::to_string(time.value_or(Seconds(0)).count())}})
                                .c_str());
    } else if (time) {
        std::printf("resumed %s: %s back on %s in %s (%s)\n", target_.text().c_str(), format_human(bytes).c_str(),
                    "the device", seconds_text(*time).c_str(), rate_text(bytes, *time).c_str());
    } else {
        std::printf("unlocked %s: it runs again\n", target_.text().c_str());
    }
    return 0;
}

int resume(const ResumeOptions &options) { return Resuming(options).run(); }

}  // namespace

extern const Command kResume{
    .name = "resume",
    .line = "Bring a suspended process back",
    .help = R"(
Refused while a GPU has less room than the process held there: the driver would wedge it for good. Others who take that
room at the same moment cannot be kept out. A process that was left locked by a suspend that was cut short is unlocked.

Exit status 0: it runs, 1: not, and it is as before, 2: in a state that standard error tells of, 125: wrong arguments,
130: not, because of Ctrl-C.

Examples:
  curb resume 4711
  curb resume --wait 10m 4711                 as soon as there is room
  curb resume --bytes 8GiB 4711               when the record of what it held is lost)",
    .takes = takes<ResumeOptions, resume>,
};

}  // namespace curb::cli
