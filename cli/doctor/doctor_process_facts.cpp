// Collects facts about a process from /proc, its control socket and NVML.
#include <elf.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <iterator>
#include <map>
#include <sstream>
#include <string_view>

#include "control/client.hpp"
#include "control/proc.hpp"
#include "doctor.hpp"
#include "libraries.hpp"
#include "nvml.hpp"
#include "policy/words.hpp"
#include "target.hpp"
#include "within.hpp"

namespace curb::cli {
namespace {

using namespace std::chrono_literals;
using control::field_in;
using control::proc_text;

constexpr auto kAnswerPatience = 1s;
constexpr int kMostGenerations = 16;

std::vector<std::string> words_of(std::string_view text) {
    std::istringstream words{std::string(text)};
    return {std::istream_iterator<std::string>(words), {}};
}

bool is_kernel_thread(int pid) {
    constexpr unsigned kKernelThread = 0x0020'0000;  // PF_KTHREAD, in the ninth field of proc(5)'s stat
    const std::string text = proc_text(pid, "stat");
    std::istringstream fields(text.substr(std::min(text.size(), text.rfind(')') + 1)));
    std::string skipped;
    unsigned flags = 0;
    for (int field = 3; field < 9; ++field) fields >> skipped;
    return (fields >> flags) && (flags & kKernelThread) != 0;
}

// AT_SECURE, of a process of 64 bits.
bool is_secure(int pid) {
    const std::string vector = proc_text(pid, "auxv");
    for (std::size_t at = 0; at + sizeof(Elf64_auxv_t) <= vector.size(); at += sizeof(Elf64_auxv_t)) {
        Elf64_auxv_t entry{};
        vector.copy(reinterpret_cast<char *>(&entry), sizeof entry, at);
        if (entry.a_type == AT_SECURE) return entry.a_un.a_val != 0;
    }
    return false;
}

// Returns the mapped libraries whose file names begin with `name`, each once, with its lowest address.
std::vector<Mapped> mapped_of(const std::string &maps, std::string_view name) {
    constexpr std::string_view kDeleted = " (deleted)";
    std::vector<Mapped> out;
    std::istringstream lines(maps);
    for (std::string line; std::getline(lines, line);) {
        const std::size_t slash = line.find('/');
        if (slash == std::string::npos) continue;
        Mapped one{line.substr(slash), 0, false};
        one.deleted = one.path.ends_with(kDeleted);
        if (one.deleted) one.path.resize(one.path.size() - kDeleted.size());
        if (!std::string_view(one.path).substr(one.path.rfind('/') + 1).starts_with(name)) continue;
        std::from_chars(line.data(), line.data() + line.size(), one.begin, 16);
        if (std::none_of(out.begin(), out.end(), [&](const Mapped &known) { return known.path == one.path; }))
            out.push_back(std::move(one));
    }
    return out;
}
std::vector<Mapped> curb_in(int pid) { return mapped_of(proc_text(pid, "maps"), "libcurb.so"); }

std::vector<Preloaded> preloaded_by(int pid, const std::string &preload) {
    std::vector<Preloaded> out;
    for (std::size_t at = 0; at < preload.size();) {
        const std::size_t end = std::min(preload.find_first_of(" :", at), preload.size());
        Preloaded one{preload.substr(at, end - at), true, {}};
        at = end + 1;
        if (one.path.find("libcurb.so") == std::string::npos) continue;
        // The loader searches for a name without a path, and replaces tokens ($ORIGIN); curb does neither.
        if (one.path.starts_with('/') && one.path.find('$') == std::string::npos) {
            const std::string as_it_sees_it = control::proc_path(pid, "root" + one.path);
            struct stat status {};
            one.there = ::stat(as_it_sees_it.c_str(), &status) == 0 || (errno != ENOENT && errno != ENOTDIR);
            one.elf = read_elf(as_it_sees_it);
        }
        out.push_back(std::move(one));
    }
    return out;
}

std::string user_text(unsigned uid) {
    const passwd *entry = ::getpwuid(uid);
    return entry != nullptr ? entry->pw_name : "user " + std::to_string(uid);
}

// Returns the nearest ancestor that has a control socket and maps libcurb.so at the same address: the process is a fork
// of it, because address randomisation gives a started program another address. 0 if there is none.
int forked_from(const Target &target, const std::vector<Mapped> &curb, const std::vector<int> &with_socket) {
    if (curb.empty()) return 0;
    int above = target.parent;
    for (int generation = 0; generation < kMostGenerations && above > 1; ++generation) {
        if (const auto there = curb_in(above); there.empty() || there.front().begin != curb.front().begin) return 0;
        if (std::binary_search(with_socket.begin(), with_socket.end(), above)) return above;
        above = look_at(above).parent;
    }
    return 0;
}

// Returns the processes that hold GPU memory. nullopt if NVML does not list them.
std::optional<std::vector<int>> listed_by_nvml() {
    const auto nvml = Nvml::open();
    if (!nvml) return std::nullopt;
    const auto gpus = nvml->gpus();
    if (!gpus) return std::nullopt;
    std::vector<int> out;
    for (const GpuUser *user : users_of(*gpus)) out.push_back(user->pid);
    return out;
}

void ask(ProcessCondition &facts, const Target &target) {
    const control::Reply reply = control::ask(facts.pid, control::StatusRequest{true}, kAnswerPatience);
    if (const auto *status = std::get_if<control::Status>(&reply)) {
        facts.status = *status;
        return;
    }
    const auto *failure = std::get_if<control::Failure>(&reply);
    facts.silence = failure != nullptr ? failure->message : facts.name + " answers something else than was asked";
    const std::vector<int> with_socket = control::processes();
    facts.has_socket = std::binary_search(with_socket.begin(), with_socket.end(), facts.pid);
    facts.forked_from = forked_from(target, facts.curb, with_socket);
}

}  // namespace

ProcessCondition look_into(int pid) {
    ProcessCondition facts;
    facts.pid = pid;
    facts.now = control::unix_now();
    facts.user = ::geteuid();
    facts.version = CURB_VERSION;
    const Target target = look_at(pid);
    facts.name = "process " + target.text();
    const std::string status = proc_text(pid, "status");
    const std::string_view state = field_in(status, "State:");
    const auto users = words_of(field_in(status, "Uid:")), pids = words_of(field_in(status, "NSpid:"));
    facts.ended = state.starts_with('Z') || state.starts_with('X');
    facts.stopped = control::is_stopped(status);
    // A process that /proc hides (hidepid) is there all the same.
    const bool hidden = status.empty() && ::kill(pid, 0) != 0 && errno == EPERM;
    facts.suspended = target.process.start != 0 && control::suspended::read(target.process);
    facts.there = facts.ended || target.process.start != 0 || hidden;
    facts.thread_of = target.thread_of;
    facts.owner = hidden ? ~0U : target.process.uid;
    facts.owner_name = hidden ? "another user" : user_text(facts.owner);
    if (!facts.there || facts.ended || facts.thread_of != 0 || hidden) return facts;

    facts.acts_as = users.size() > 1 ? static_cast<unsigned>(policy::whole_number(users[1]).value_or(0)) : facts.owner;
    if (pids.size() > 1) facts.inner_pid = policy::whole_number(pids.back()).value_or(0);
    facts.kernel_thread = is_kernel_thread(pid);
    if (facts.kernel_thread) return facts;

    const std::string maps = proc_text(pid, "maps");
    facts.readable = !maps.empty() && target.environment.has_value();
    facts.curb = mapped_of(maps, "libcurb.so");
    facts.driver = mapped_of(maps, "libcuda.so");
    facts.tensorflow = mapped_of(maps, "libtensorflow_framework.so");
    facts.program = read_elf(control::proc_path(pid, "exe"));
    if (const auto library = find_library()) facts.library = read_elf(library->string());
    facts.secure = is_secure(pid);
    if (target.environment) {
        const auto &environment = *target.environment;
        facts.has_settings = environment.contains("CURB_POLICY") || environment.contains("CURB_CAP");
        if (const auto preload = environment.find("LD_PRELOAD"); preload != environment.end()) {
            facts.preload = preload->second;
            facts.preloaded = preloaded_by(pid, preload->second);
        }
    }
    ask(facts, target);
    facts.listed = within(kNvmlPatience, listed_by_nvml).value_or(std::nullopt);
    return facts;
}

}  // namespace curb::cli
