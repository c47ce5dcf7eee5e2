#include "startup/before_main.hpp"

#include <fcntl.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "config/load.hpp"
#include "host/unwinder.hpp"
#include "policy/handed_in.hpp"
#include "policy/steer.hpp"

namespace curb::shim::before_main {
namespace {

// The words that a policy file contains. A \u escape could spell any key, so it counts as `frameworks`, `job` and
// `environment`.
struct Mentions {
    bool frameworks = false;   // or CURB_STEER is set
    bool cap = false;          // outside the rules: it applies to every process
    bool cap_in_rule = false;  // in or after the rules: it may apply to this process
    bool job = false;
    bool environment = false;  // it may exclude the caps that other systems hand in
};

// Searches the file instead of parsing it, because every program of a session does this. Allocates nothing.
// Separate from mentions_of(), so that a program without a policy needs no stack for the block.
[[gnu::cold, gnu::noinline]] Mentions search(int fd) noexcept {
    Mentions out;
    constexpr std::string_view kWord = "frameworks", kEscape = "\\u", kCap = "cap\"", kRules = "\"rules\"",
                               kJob = "\"job", kEnvironment = "\"environment\"", kLongest = kEnvironment;
    constexpr auto kNowhere = std::string_view::npos;
    char block[2 * 1024];
    struct stat status {};
    const bool regular = fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
    bool in_rules = false;
    std::size_t seen = 0, kept = 0;  // kept: bytes of the last block, because a word may span two
    for (ssize_t got = 0; regular && !(out.frameworks && out.job) && seen <= config::kLargest &&
                          (got = read(fd, block + kept, sizeof block - kept)) > 0;) {
        const std::string_view text(block, kept + static_cast<std::size_t>(got));
        const bool escaped = text.find(kEscape) != kNowhere;
        out.frameworks |= escaped || text.find(kWord) != kNowhere;
        out.job |= escaped || text.find(kJob) != kNowhere;
        out.environment |= escaped || text.find(kEnvironment) != kNowhere;
        const std::size_t rules = in_rules ? 0 : text.find(kRules), cap = text.find(kCap);
        if (cap != kNowhere) (cap < rules ? out.cap : out.cap_in_rule) = true;
        in_rules = rules != kNowhere;
        seen += static_cast<std::size_t>(got);
        kept = text.size() < kLongest.size() ? text.size() : kLongest.size();
        memmove(block, text.data() + text.size() - kept, kept);
    }
    return out;
}

[[gnu::cold]] Mentions mentions_of(const char *path) noexcept {
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) return {};
    const Mentions out = search(fd);
    close(fd);
    return out;
}

// The same for the user's own policy file.
[[gnu::cold, gnu::noinline]] Mentions mentions_of_users_file(const char *(*environment)(const char *)) noexcept {
    char path[PATH_MAX];
    return config::users_file(environment("XDG_CONFIG_HOME"), environment("HOME"), path) ? mentions_of(path)
                                                                                         : Mentions();
}

void add(Mentions &all, const Mentions &more) noexcept {
    all.frameworks |= more.frameworks;
    all.cap |= more.cap;
    all.cap_in_rule |= more.cap_in_rule;
    all.job |= more.job;
    all.environment |= more.environment;
}

// True if another system hands in a cap. Walks the variables once, because every start of a program pays for it.
bool has_handed_in_cap(const char *const *variables) noexcept {
    while (*variables && !policy::hands_in_cap(*variables)) ++variables;
    return *variables;
}

// Searches all policies of this process. Allocates nothing, because nearly every program runs it and has no policy.
[[gnu::cold]] Mentions mentioned(const char *(*environment)(const char *), const char *const *variables) noexcept {
    Mentions all = mentions_of(config::kCeiling);
    if (getauxval(AT_SECURE) != 0) return all;
    const char *cap = environment("CURB_CAP"), *job_cap = environment("CURB_JOB_CAP"),
               *named = environment("CURB_POLICY"), *steer = environment("CURB_STEER");
    all.job |= job_cap && *job_cap;
    all.cap |= (cap && *cap) || all.job;
    all.frameworks |= steer && *steer;
    add(all, named && *named ? mentions_of(named) : mentions_of_users_file(environment));
    if (has_handed_in_cap(variables)) (all.environment ? all.cap_in_rule : all.cap) = true;
    return all;
}

bool is_for_a_cap(const policy::Preset &one) noexcept { return one.when == policy::SteerWhen::capped; }

void set_for_a_cap() noexcept {
    for (const policy::Preset &one : policy::presets())
        if (is_for_a_cap(one) && !(*one.unless && getenv(one.unless))) setenv(one.name, one.value, 0);
}
bool is_set_for_a_cap() noexcept {
    const auto presets = policy::presets();
    return std::all_of(presets.begin(), presets.end(),
                       [](const policy::Preset &one) { return !is_for_a_cap(one) || getenv(one.name); });
}

}  // namespace

// Parses the policy only if its text does not decide: parsing costs each command of a shell script 0.5 ms.
void set_environment(const char *(*environment)(const char *), const char *const *variables) noexcept try {
    const Mentions said = mentioned(environment, variables);
    // If the policy may cap a job, this process becomes the root of a tree, unless it is in one: the processes that it
    // starts are of the same job.
    if (said.job && !environment("CURB_JOB") && getauxval(AT_SECURE) == 0)
        setenv("CURB_JOB", config::new_tree().c_str(), 0);
    const bool decided = !said.frameworks && (said.cap || !said.cap_in_rule || is_set_for_a_cap());
    if (decided) {
        if (said.cap) set_for_a_cap();
        return;
    }
    if (!unwinder::load()) return;
    const auto loaded = config::load(config::locate(environment), config::this_process);
    if (!loaded) return;
    for (const auto &[name, value] : policy::variables_to_set(loaded->policy, getenv))
        setenv(name.c_str(), value.c_str(), 0);
} catch (...) {
    // Out of host memory before main: the program will fail by itself.
}

}  // namespace curb::shim::before_main
