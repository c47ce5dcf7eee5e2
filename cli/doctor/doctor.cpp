// `curb doctor`: finds problems of this machine or of one process, and prints the remedies.
#include <algorithm>

#include "command/command.hpp"
#include "doctor/doctor.hpp"
#include "machine/sim.hpp"
#include "policy/values/words.hpp"
#include "terminal/json.hpp"
#include "terminal/terminal.hpp"
#include "terminal/text_width.hpp"

namespace curb::cli {
namespace {

struct DoctorOptions {
    int pid = 0;  // 0: the machine
    bool json = false, sim = false;

    void declare(Options &takes) {
        takes.pid(pid, "A process");
        takes.json(json);
        takes.sim(sim);
    }
};

std::string json_of(const Findings &findings, int pid) {
    const auto finding = [](const Finding &one) {
        return json::object({{"check", json::text(one.check)},
                             {"result", json::text(verdict_name(one.verdict))},
                             {"message", json::text(policy::one_line(one.text))},
                             {"remedy", json::text(policy::one_line(one.remedy))}});
    };
    return json::object({{"pid", pid == 0 ? "null" : std::to_string(pid)},
                         {"healthy", !has_problem(findings)},
                         {"findings", json::list(findings, finding)}}) +
           "\n";
}

std::string text_of(const Findings &findings, const Screen &screen) {
    constexpr std::size_t kVerdict = 7;
    const auto ink_of = [](Verdict verdict) {
        return verdict == Verdict::problem ? Ink::red : verdict == Verdict::note ? Ink::yellow : Ink::green;
    };
    std::size_t width = 0, problems = 0, notes = 0;
    for (const Finding &one : findings) width = std::max(width, std::string_view(one.check).size());
    const std::size_t indent = kVerdict + 2 + width + 2;
    const auto filled = [&](const std::string &text) {
        return wrapped(plain(text), screen.width.value_or(std::string::npos), indent, indent);
    };
    std::string out;
    for (const Finding &one : findings) {
        problems += one.verdict == Verdict::problem;
        notes += one.verdict == Verdict::note;
        out += inked(screen, ink_of(one.verdict), padded(verdict_name(one.verdict), kVerdict)) + "  " +
               padded(one.check, width) + "  " + filled(one.text);
        if (!one.remedy.empty()) out += std::string(indent, ' ') + filled("-> " + one.remedy);
    }
    const auto count = [](std::size_t number, const char *what) {
        return number == 0 ? "no " + std::string(what) + "s" : counted(number, what);
    };
    return out + count(problems, "problem") + ", " + count(notes, "note") + "\n";
}

int doctor(const DoctorOptions &options) {
    if (const auto fault = use_sim(options.sim)) return failed(*fault);
    const Findings findings = options.pid == 0 ? examine(inspect_machine()) : examine(inspect_process(options.pid));
    print(options.json ? json_of(findings, options.pid) : text_of(findings, screen_of_stdout()));
    return has_problem(findings) ? 1 : 0;
}

}  // namespace

const char *verdict_name(Verdict verdict) {
    return verdict == Verdict::ok ? "ok" : verdict == Verdict::note ? "note" : "problem";
}

bool has_problem(const Findings &findings) {
    return std::any_of(findings.begin(), findings.end(),
                       [](const Finding &one) { return one.verdict == Verdict::problem; });
}

bool note_unlisted(const Check &check, bool when, const std::string &which) {
    return check.note(
        when,
        "NVML does not list " + which + ", as in some containers, so what the driver takes for code is not measured",
        "let the container share the machine's pids (docker run --pid=host), if that matters");
}

extern const Command kDoctor{
    .name = "doctor",
    .line = "Find what is wrong with this machine, or why a process is not capped",
    .help = R"(
Without PID: the driver, NVML, libcurb.so, the folder for control sockets, the policy of this environment, and who uses
the GPUs. With PID: whether curb is in effect in that process, and if not, why. Loads the driver, which takes seconds
where no GPU is kept awake, and takes no GPU memory.

Exit status 0: nothing is wrong, 1: problems were found; notes do not count.

Examples:
  curb doctor
  curb doctor 4711                            is curb in effect there?
  curb doctor --json | jq '.findings[] | select(.result == "problem")')",
    .takes = takes<DoctorOptions, doctor>,
};

}  // namespace curb::cli
