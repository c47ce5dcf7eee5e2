#include "suspend/moving.hpp"

#include <algorithm>

#include "command/command.hpp"
#include "control/proc.hpp"
#include "control/suspended.hpp"
#include "machine/sim.hpp"
#include "terminal/format.hpp"
#include "terminal/json.hpp"
#include "terminal/messages.hpp"
#include "terminal/terminal.hpp"

namespace curb::cli {

Moving::Moving(const char *what, const char *done, int pid, std::vector<std::string> *answers)
    : pid_(pid),
      target_(inspect(pid)),
      cannot_(fmt::format("cannot {} {}: ", what, target_.text())),
      answers_(answers),
      done_(done) {}

bool Moving::answer(const json::Members &members) const {
    if (answers_) answers_->push_back(json::object(members));
    return answers_ != nullptr;
}

int Moving::ended(int status, const std::string &state, const std::string &message) const {
    say::error(message);
    static_cast<void>(
        answer({{"pid", pid_}, {done_, false}, {"process", json::text(state)}, {"message", json::text(message)}}));
    return status;
}

int Moving::half_done(const FoundState &state, const std::string &why) const {
    if (control::suspended::start_of(pid_) != target_.process.start)
        return ended(kHalfDone, "ended", why + "; the process has ended");
    const std::string remedy = state.is(CU_PROCESS_STATE_FAILED)
                                   ? "the driver has given it up, and all that is left is to end it (kill -9)"
                                   : "try curb resume " + std::to_string(pid_);
    return ended(kHalfDone, state.name(), why + "; its state is " + state.name() + ": " + remedy);
}

policy::Bytes Moving::held() const {
    const auto gpus = nvml_gpus();
    return gpus ? held_by(*gpus, pid_) : 0;
}

bool Moving::is_the_same() const {
    const control::suspended::Process now = identity_of(pid_, control::proc_text(pid_, "status"));
    return now.start == target_.process.start && now.uid == target_.process.uid;
}

policy::Bytes Moving::recorded() const {
    policy::Bytes sum = 0;
    for (const auto &gpu : control::suspended::read(target_.process).value_or(control::suspended::Record()))
        sum += gpu.held;
    return sum;
}

int each(const char *command, bool is_out_after, const MoveOptions &options, const Move &move) {
    if (const auto fault = use_sim(options.sim)) return failed(*fault);
    const auto processes = found(options.selection, command);
    if (!processes) return failed(processes.error());
    std::vector<std::string> answers;
    int status = 0;
    bool none = true;
    for (const int pid : *processes) {
        if (options.selection.is_described() && is_suspended(identity_of(pid)) == is_out_after) continue;
        none = false;
        const int one = move(pid, options.json ? &answers : nullptr);
        status = std::max(status, one);
        if (one == kInterrupted) break;
    }
    if (none) say::hint(fmt::format("no process under curb is there to {}", command));
    if (options.json) print_line(json::list(answers));
    return status;
}

}  // namespace curb::cli
