#include "command/hints.hpp"

#include <algorithm>

#include "policy/values/words.hpp"
#include "terminal/format.hpp"

namespace curb::cli {
namespace {

struct Hint {
    std::string_view command, word, text;
};

constexpr std::string_view kGpus =
    "CUDA_VISIBLE_DEVICES chooses the GPUs that a program sees; to cap one of them: --cap cuda:0=8GiB";
constexpr std::string_view kAll = "curb ps shows all processes; to choose some: --user, --name, --gpu, --job, --tree";

constexpr Hint kHints[] = {
    // Names that other tools use.
    {"curb", "list", "did you mean curb ps?"},
    {"curb", "ls", "did you mean curb ps?"},
    {"curb", "status", "did you mean curb ps?"},
    {"curb", "show", "did you mean curb ps?"},
    {"curb", "limit", "did you mean curb cap?"},
    {"curb", "set", "did you mean curb cap?"},
    {"curb", "exec", "did you mean curb run?"},
    {"curb", "start", "did you mean curb run?"},
    {"curb", "free", "did you mean curb release?"},
    {"curb", "stop", "did you mean curb suspend?"},
    {"curb", "pause", "did you mean curb suspend?"},
    {"curb", "continue", "did you mean curb resume?"},
    {"curb", "wake", "did you mean curb resume?"},
    {"curb", "watch", "did you mean curb top?"},
    {"curb", "check", "did you mean curb policy check?"},
    {"curb", "init", "did you mean curb policy init?"},
    {"curb", "explain", "did you mean curb policy explain?"},
    {"curb", "kill", "to end a process: kill PID; to free GPU memory: curb release PID, curb nap PID"},
    // Options that are not needed, or that cannot be.
    {"curb run", "--gpu", kGpus},
    {"curb run", "--gpus", kGpus},
    {"curb run", "--device", kGpus},
    {"curb top", "--once", "curb ps prints once"},
    {"curb top", "--json", "curb ps --json prints once"},
    {"curb ps", "--all", kAll},
    {"curb ps", "-a", kAll},
    {"curb ps", "--once", "curb ps prints once"},
    {"curb report", "--html", "write -o run.html"},
    {"curb report", "--svg", "write -o run.svg"},
};

// Options of other tools, and that of curb with the same meaning, for commands that have it.
constexpr std::pair<std::string_view, std::string_view> kOtherOptions[] = {
    {"--memory", "--cap"},       {"--mem", "--cap"},    {"--limit", "--cap"},     {"--max-memory", "--cap"},
    {"--memory-limit", "--cap"}, {"--vram", "--cap"},   {"--config", "--policy"}, {"--file", "--policy"},
    {"--interval", "--watch"},   {"--device", "--gpu"}, {"--out", "--output"},
};

}  // namespace

std::string hint_for(std::string_view command, std::string_view word, const std::vector<std::string> &names) {
    const std::string_view name = word.substr(0, word.starts_with('-') ? word.find('=') : word.size());
    for (const Hint &one : kHints)
        if (one.command == command && one.word == name) return fmt::format("; {}", one.text);
    for (const auto &[other, ours] : kOtherOptions)
        if (other == name && std::find(names.begin(), names.end(), ours) != names.end())
            return fmt::format("; did you mean {}?", ours);
    const std::string_view near = policy::nearest(name, std::vector<std::string_view>(names.begin(), names.end()));
    if (near.empty()) return {};
    return word.starts_with('-') ? fmt::format("; did you mean {}?", near)
                                 : fmt::format("; did you mean {} {}?", command, near);
}

}  // namespace curb::cli
