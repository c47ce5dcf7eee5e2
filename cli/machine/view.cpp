// Asks the processes under curb, NVML and /proc, and joins the answers.
#include "machine/view.hpp"

#include <fcntl.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <map>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "control/client.hpp"
#include "control/descriptor.hpp"
#include "control/proc.hpp"
#include "control/suspended.hpp"
#include "control/ticket.hpp"
#include "machine/sim.hpp"
#include "machine/target.hpp"
#include "policy/values/words.hpp"
#include "terminal/messages.hpp"

namespace curb::cli {
namespace {

// A process can overwrite its command line with any text, even gigabytes.
constexpr std::size_t kMostOfCommand = 64 << 10;

using control::proc_text;

// Asks once for each user: a directory service may be slow.
const std::string &user_name(uid_t uid) {
    static std::map<uid_t, std::string> known;
    const auto found = known.find(uid);
    if (found != known.end()) return found->second;
    const passwd *entry = ::getpwuid(uid);
    return known[uid] =
               entry && entry->pw_name && *entry->pw_name ? policy::plain(entry->pw_name) : std::to_string(uid);
}

// Container runtimes end a cgroup's path with the container's id of 64 hexadecimal digits: "…/docker-3f2a….scope".
std::string container_of(int pid) {
    constexpr std::size_t kDigits = 64, kShown = 12;
    const std::string path = proc_text(pid, "cgroup", kMostOfCommand);
    for (std::size_t at = 0, digits = 0; at < path.size(); ++at) {
        digits = std::string_view("0123456789abcdef").find(path[at]) == std::string_view::npos ? 0 : digits + 1;
        if (digits == kDigits) return path.substr(at + 1 - kDigits, kShown);
    }
    return {};
}

ProcessFacts facts_of(int pid, bool asked) {
    ProcessFacts out;
    out.pid = pid;
    const std::string status = proc_text(pid, "status");
    const control::suspended::Process process = identity_of(pid, status);
    if (process.start == 0 || status.empty()) return out;
    out.lives = true;
    out.start = process.start;
    out.uid = process.uid;
    out.inner_pid = control::innermost_pid(pid, status);
    out.stopped = control::is_stopped(status);
    out.user = user_name(process.uid);
    out.name = policy::plain(name_of(pid));
    std::string words = proc_text(pid, "cmdline", kMostOfCommand);
    while (!words.empty() && words.back() == '\0') words.pop_back();
    std::replace(words.begin(), words.end(), '\0', ' ');
    out.command = policy::plain(words);
    out.container = container_of(pid);
    out.suspended = control::suspended::read(process).has_value();
    if (asked) return out;
    const auto mapped = control::has_mapped(pid, control::kLibrary);
    out.under_curb = mapped.value_or(false);
    out.unseen = !mapped;
    return out;
}

std::set<int> listed_in(const NvmlGpus &gpus) {
    std::set<int> out;
    if (gpus)
        for (const GpuUser *user : users_of(*gpus)) out.insert(user->pid);
    return out;
}

bool is_on_one_of(const NvmlGpus &gpus, const control::board::Entry &entry) {
    const auto has = [&](const GpuState &gpu) {
        return std::any_of(entry.gpus.begin(), entry.gpus.end(),
                           [&](const control::board::Gpu &one) { return one.uuid == gpu.uuid; });
    };
    return gpus && std::any_of(gpus->begin(), gpus->end(), [&](const GpuState &gpu) {
               return has(gpu) || std::any_of(gpu.instances.begin(), gpu.instances.end(), has);
           });
}

// Finds the processes of the board among `here`, to which it adds those of this pid namespace that use one of these
// GPUs. A process in another pid namespace has another pid there; where it is not seen, it has none here.
std::vector<PostedFacts> posted_facts(const NvmlGpus &gpus, std::vector<ProcessFacts> &here) {
    constexpr int kMostUnseen = 32;  // of a user: these processes cannot be verified
    std::map<uid_t, int> unseen;
    std::vector<PostedFacts> out;
    for (control::board::Posted &one : control::board::read_all(control::places())) {
        const control::ProcessName &process = one.entry.process;
        const auto is_it = [&](const ProcessFacts &other) {
            return other.lives && other.start == process.start && other.uid == one.owner &&
                   (one.here ? other.pid : other.inner_pid) == process.pid;
        };
        auto found = std::find_if(here.begin(), here.end(), is_it);
        const bool is_new = found == here.end() && is_on_one_of(gpus, one.entry);
        if (is_new && one.here) {
            here.push_back(facts_of(process.pid, false));
            found = is_it(here.back()) ? std::prev(here.end()) : here.end();
            if (found == here.end()) here.pop_back();
        }
        if (found != here.end())
            out.push_back({found->pid, std::move(one.entry)});
        else if (is_new && !one.here && ++unseen[one.owner] <= kMostUnseen)
            out.push_back({0, std::move(one.entry), user_name(one.owner)});
    }
    return out;
}

// Returns who is next on each GPU on which a process takes turns.
std::map<std::string, int> next_turns(const NvmlGpus &gpus, const std::vector<PostedFacts> &posted) {
    std::map<std::string, int> out;
    const auto ask = [&](const GpuState &gpu) {
        const auto takes_turns = [&](const PostedFacts &one) {
            return std::any_of(one.entry.gpus.begin(), one.entry.gpus.end(),
                               [&](const control::board::Gpu &of) { return of.turn && of.uuid == gpu.uuid; });
        };
        if (std::none_of(posted.begin(), posted.end(), takes_turns)) return;
        const auto next = control::Ticket::first_lacking(control::places(), gpu.uuid, gpu.free);
        const auto is_it = [&](const PostedFacts &one) {
            return next && one.entry.process == next->process && one.entry.pid_namespace == next->pid_namespace;
        };
        const auto found = std::find_if(posted.begin(), posted.end(), is_it);
        if (found != posted.end()) out[gpu.uuid] = found->pid;
    };
    if (gpus)
        for (const GpuState &gpu : *gpus) {
            ask(gpu);
            std::for_each(gpu.instances.begin(), gpu.instances.end(), ask);
        }
    return out;
}

// Throws std::system_error if a folder and a file in it cannot be open at once: without that, /proc and the board look
// as if there were no process.
void require_descriptors() {
    const auto opened = [] { return control::Descriptor(::open("/proc", O_PATH | O_CLOEXEC)); };
    const control::Descriptor folder = opened(), file = opened();
    if (!file)
        throw std::system_error(errno, std::generic_category(),
                                "the processes cannot be read; raise the limit of open files (ulimit -n)");
}

// Joins these answers with NVML, the board and /proc.
View view_with(std::vector<control::Answer> answers) {
    ViewFacts facts{nvml_gpus(), std::move(answers), {}};
    require_descriptors();  // NVML keeps some
    say::detail("asked " + std::to_string(facts.answers.size()) + " processes under curb");
    std::set<int> asked, known, missing;
    for (const control::Answer &one : facts.answers) asked.insert(one.pid);
    const auto add_new = [&](const std::set<int> &pids) {
        for (const int pid : pids) {
            if (!known.insert(pid).second) continue;
            facts.processes.push_back(facts_of(pid, asked.contains(pid)));
            if (!facts.processes.back().lives) missing.insert(pid);
        }
    };
    add_new(asked);
    add_new(listed_in(facts.gpus));
    facts.posted = posted_facts(facts.gpus, facts.processes);
    facts.next = next_turns(facts.gpus, facts.posted);
    facts.now = control::unix_now();
    if (missing.empty()) return join(facts);
    // A process without an entry in /proc has ended, or it is in another pid namespace: then NVML still lists it.
    facts.gpus = nvml_gpus();
    const std::set<int> still = listed_in(facts.gpus), suspects = std::exchange(missing, {});
    add_new(still);
    std::erase_if(facts.processes, [&](const ProcessFacts &one) {
        return suspects.contains(one.pid) && still.contains(one.pid) &&
               ::access(control::proc_path(one.pid, "").c_str(), F_OK) != 0;
    });
    return join(facts);
}

using policy::Bytes;

// "process 4711 has not answered" -> "has not answered"
std::string without_pid(int pid, const std::string &message) {
    const std::string head = control::process_text(pid) + " ";
    return message.starts_with(head) ? message.substr(head.size()) : message;
}

class Join {
  public:
    explicit Join(const ViewFacts &facts) : facts_(facts) {}

    View done() && {
        add_processes();
        if (facts_.gpus) {
            for (const GpuState &gpu : *facts_.gpus) add_gpu(gpu);
        } else {
            view_.nvml_fault = facts_.gpus.error();
        }
        for (std::size_t process = 0; process < view_.processes.size(); ++process) add_books(process);
        for (std::size_t process = 0; process < view_.processes.size(); ++process) add_posted(process);
        remove_uses_of_instances();
        sort();
        return std::move(view_);
    }

  private:
    void add_processes() {
        std::map<int, ViewProcess> all;
        for (const ProcessFacts &one : facts_.processes)
            if (one.lives) all[one.pid] = seen(one);
        for (const control::Answer &answer : facts_.answers)
            if (const auto found = all.find(answer.pid); found != all.end())  // else it has ended since it was asked
                take(answer, found->second);
        if (facts_.gpus)
            for (const GpuUser *user : users_of(*facts_.gpus))
                if (!is_known(user->pid)) all[user->pid].elsewhere = true;
        for (const PostedFacts &one : facts_.posted)
            if (const auto found = all.find(one.pid); found != all.end()) found->second.posted = one.entry;
        for (auto &[pid, process] : all) {
            process.pid = pid;
            indices_[pid] = view_.processes.size();
            view_.processes.push_back(std::move(process));
        }
        add_those_posted_alone();
    }
    static ViewProcess seen(const ProcessFacts &facts) {
        ViewProcess out = facts;
        if (out.command.empty()) out.command = out.name;
        if (out.under_curb) out.trouble = "has no control socket: see curb doctor " + std::to_string(facts.pid);
        return out;
    }
    static void take(const control::Answer &answer, ViewProcess &process) {
        process.under_curb = true;
        process.trouble.clear();
        if (auto status = report_in<control::Status>(answer.pid, answer.reply))
            process.status = std::move(status).value();
        else
            process.trouble = without_pid(answer.pid, status.error());
        // The record of a nap is there before the memory has moved, and a light nap has none.
        if (process.status && process.status->nap)
            process.suspended = process.status->nap->out || (process.suspended && !process.status->nap->leaving);
    }
    // Adds the processes of other pid namespaces that NVML does not list, or under another pid. If a user posts one pid
    // of a namespace twice, the older process has ended: it counts as living for a while.
    void add_those_posted_alone() {
        const auto is_newer = [](const PostedFacts &a, const PostedFacts &b) {
            const control::ProcessName &of_a = a.entry.process, &of_b = b.entry.process;
            return a.pid == 0 && a.user == b.user && a.entry.pid_namespace == b.entry.pid_namespace &&
                   of_a.pid == of_b.pid && of_a.start > of_b.start;
        };
        for (const PostedFacts &one : facts_.posted) {
            const bool is_replaced = std::any_of(facts_.posted.begin(), facts_.posted.end(),
                                                 [&](const PostedFacts &other) { return is_newer(other, one); });
            if (one.pid != 0 || is_replaced) continue;
            ViewProcess &process = view_.processes.emplace_back();
            process.pid = one.entry.process.pid;
            process.user = one.user;
            process.elsewhere = true;
            process.posted = one.entry;
        }
    }
    [[nodiscard]] bool is_known(int pid) const {
        return std::any_of(facts_.processes.begin(), facts_.processes.end(),
                           [=](const ProcessFacts &one) { return one.pid == pid; });
    }

    void add_gpu(const GpuState &gpu, const std::string &parent = {}) {
        if (!gpu.lists_processes) view_.nvml_fault = kListsNone;
        ViewGpu out{gpu.index, gpu.uuid, parent, gpu.name, gpu.total, gpu.used, gpu.free, gpu.mig, {}};
        out.utilization = gpu.utilization;
        out.temperature = gpu.temperature;
        out.shares_host_memory = gpu.shares_host_memory;
        if (const auto next = facts_.next.find(gpu.uuid); next != facts_.next.end()) out.next = next->second;
        for (const GpuUser &user : gpu.users)
            if (const auto found = indices_.find(user.pid); found != indices_.end())
                out.uses.push_back({found->second, std::nullopt, user.held});
        view_.gpus.push_back(std::move(out));
        for (const GpuState &instance : gpu.instances) add_gpu(instance, gpu.uuid);
    }

    // Adds the process's own figures beside NVML's.
    void add_books(std::size_t process) {
        const auto &status = view_.processes[process].status;
        if (!status) return;
        for (std::size_t i = 0; i < status->gpus.size(); ++i) {
            const control::GpuStatus &books = status->gpus[i];
            const auto gpu = std::find_if(view_.gpus.begin(), view_.gpus.end(),
                                          [&](const ViewGpu &one) { return one.uuid == books.uuid; });
            if (gpu != view_.gpus.end()) {
                const auto use = std::find_if(gpu->uses.begin(), gpu->uses.end(),
                                              [=](const ViewUse &one) { return one.process == process; });
                if (use != gpu->uses.end()) {
                    use->books = i;
                    continue;
                }
            }
            // A process also lists devices that it sees and holds nothing of.
            if (books.held == 0 && books.contexts == 0 && control::refused(books) == 0) continue;
            (gpu == view_.gpus.end() ? add_device(books) : *gpu).uses.push_back({process, i, std::nullopt});
        }
    }
    // Adds what the process posts for all users.
    void add_posted(std::size_t process) {
        constexpr control::UnixMs kIdle = 60'000;
        const ViewProcess &of = view_.processes[process];
        if (!of.posted) return;
        const State state = state_of(of);
        const bool is_idle = facts_.now - of.posted->used >= kIdle,
                   is_out = state == State::napping || state == State::suspended;
        for (std::size_t i = 0; i < of.posted->gpus.size(); ++i) {
            const auto gpu = std::find_if(view_.gpus.begin(), view_.gpus.end(),
                                          [&](const ViewGpu &one) { return one.uuid == of.posted->gpus[i].uuid; });
            if (gpu == view_.gpus.end()) continue;
            auto use = std::find_if(gpu->uses.begin(), gpu->uses.end(),
                                    [=](const ViewUse &one) { return one.process == process; });
            if (use == gpu->uses.end()) use = gpu->uses.insert(use, {process, std::nullopt, std::nullopt});
            use->posted = i;
            const control::GpuStatus *books = books_of(view_, *use);
            const std::optional<Bytes> held = books ? books->held : of.posted->gpus[i].held;
            if (held) use->idle = is_idle && !is_out ? *held : 0;
        }
    }
    // Adds a device that NVML does not list. A MIG instance goes behind its GPU.
    ViewGpu &add_device(const control::GpuStatus &books) {
        ViewGpu out{{}, books.uuid, books.parent, {}, books.total, {}, {}, !books.parent.empty(), {}};
        out.shares_host_memory = books.shares_host_memory;
        auto at = std::find_if(view_.gpus.begin(), view_.gpus.end(),
                               [&](const ViewGpu &one) { return out.mig && one.uuid == books.parent; });
        if (at != view_.gpus.end()) {
            at->mig = true;
            for (++at; at != view_.gpus.end() && at->parent == out.parent;) ++at;
        }
        return *view_.gpus.insert(at, std::move(out));
    }

    // Removes processes from a whole GPU if their instance is known: NVML lists the processes of instances there too.
    void remove_uses_of_instances() {
        for (ViewGpu &gpu : view_.gpus) {
            if (!gpu.mig || !gpu.parent.empty()) continue;
            std::erase_if(gpu.uses, [&](const ViewUse &use) {
                return std::any_of(view_.gpus.begin(), view_.gpus.end(), [&](const ViewGpu &instance) {
                    return instance.parent == gpu.uuid &&
                           std::any_of(instance.uses.begin(), instance.uses.end(),
                                       [&](const ViewUse &one) { return one.process == use.process; });
                });
            });
        }
    }

    [[nodiscard]] Bytes size_of(const ViewUse &use) const {
        const control::GpuStatus *books = books_of(view_, use);
        const control::board::Gpu *posted = posted_of(view_, use);
        return std::max(books ? books->held : posted ? posted->held.value_or(0) : 0, use.nvml.value_or(0));
    }
    void sort() {
        for (ViewGpu &gpu : view_.gpus)
            std::sort(gpu.uses.begin(), gpu.uses.end(), [&](const ViewUse &a, const ViewUse &b) {
                const Bytes left = size_of(a), right = size_of(b);
                return left != right ? left > right : a.process < b.process;
            });
    }

    const ViewFacts &facts_;
    View view_;
    std::map<int, std::size_t> indices_;  // pid -> process
};

}  // namespace

View poll_all(std::chrono::milliseconds patience) {
    std::vector<control::Answer> answers = control::ask_all(control::StatusRequest(), patience);
    std::erase_if(answers, [](const control::Answer &one) { return !is_on_machine(one.pid); });
    return view_with(std::move(answers));
}

Polled poll(const std::vector<int> &pids, std::chrono::milliseconds patience) {
    Polled out;
    std::vector<control::Answer> answers;
    control::ask_each(pids, {{control::StatusRequest{true}, patience}}, [&](control::Answer one) {
        if (const auto *failure = std::get_if<control::Failure>(&one.reply)) out.failures[one.pid] = failure->message;
        // A failure of a process that is not under curb is not an answer.
        const bool is_answer = !out.failures.contains(one.pid) || facts_of(one.pid, false).under_curb;
        if (is_answer) answers.push_back(std::move(one));
    });
    out.view = view_with(std::move(answers));
    return out;
}

View only(const View &view, const std::vector<std::size_t> &processes) {
    View out;
    out.nvml_fault = view.nvml_fault;
    std::map<std::size_t, std::size_t> kept;  // index in `view` -> index in `out`
    for (const std::size_t process : processes) {
        kept[process] = out.processes.size();
        out.processes.push_back(view.processes[process]);
    }
    for (const ViewGpu &gpu : view.gpus) {
        ViewGpu here = gpu;
        std::erase_if(here.uses, [&](const ViewUse &use) { return !kept.contains(use.process); });
        for (ViewUse &use : here.uses) use.process = kept[use.process];
        if (!here.uses.empty()) out.gpus.push_back(std::move(here));
    }
    return out;
}

const char *state_name(State state) {
    static constexpr const char *kNames[] = {"unknown", "napping", "suspended", "stopped",   "no curb",
                                             "silent",  "waiting", "over cap",  "releasing", "running"};
    static_assert(std::size(kNames) == kStates);
    return kNames[static_cast<std::size_t>(state)];
}

bool is_over_cap(const ViewProcess &process, const control::GpuStatus &books) {
    return books.cap && books.held > *books.cap && !process.suspended;
}

namespace {

// Returns the state that a process of another user posts.
State state_in(const control::board::Entry &posted) {
    switch (posted.state) {
        case control::board::State::napping: return State::napping;
        case control::board::State::waiting: return State::waiting;
        case control::board::State::running: break;
    }
    const bool is_over = std::any_of(posted.gpus.begin(), posted.gpus.end(), [](const control::board::Gpu &gpu) {
        return gpu.held && gpu.cap && *gpu.held > *gpu.cap;
    });
    return is_over ? State::over_cap : State::running;
}

}  // namespace

std::optional<bool> is_under_curb(const ViewProcess &process) {
    if (process.under_curb || process.posted) return true;
    if (process.unseen || process.elsewhere) return std::nullopt;
    return false;
}

State state_of(const ViewProcess &process, const control::GpuStatus *books) {
    if (process.elsewhere && !process.posted) return State::unknown;
    if (process.status && process.status->nap && process.status->nap->out && !process.status->nap->stays_out)
        return State::napping;
    if (process.suspended) return State::suspended;
    if (process.stopped) return State::stopped;
    if (!process.under_curb && process.posted) return state_in(*process.posted);
    if (!process.under_curb) return process.unseen ? State::unknown : State::no_curb;
    if (!process.status) return State::silent;
    const auto any = [&](auto is) {
        const auto &gpus = process.status->gpus;
        return books ? is(*books) : std::any_of(gpus.begin(), gpus.end(), is);
    };
    if (any([](const control::GpuStatus &gpu) { return gpu.waiting > 0; })) return State::waiting;
    if (any([&](const control::GpuStatus &gpu) { return is_over_cap(process, gpu); })) return State::over_cap;
    return process.status->releasing ? State::releasing : State::running;
}

const control::GpuStatus *books_of(const View &view, const ViewUse &use) {
    if (!use.books) return nullptr;
    const auto &status = view.processes[use.process].status;
    return status && *use.books < status->gpus.size() ? &status->gpus[*use.books] : nullptr;
}

const control::board::Gpu *posted_of(const View &view, const ViewUse &use) {
    const auto &posted = view.processes[use.process].posted;
    return use.posted && posted && *use.posted < posted->gpus.size() ? &posted->gpus[*use.posted] : nullptr;
}

std::map<std::string, policy::Bytes> idle_on(const ViewGpu &gpu, const View &view) {
    std::map<std::string, policy::Bytes> out;
    for (const ViewUse &use : gpu.uses)
        if (use.idle.value_or(0) != 0) out[view.processes[use.process].user] += *use.idle;
    return out;
}

std::map<std::string, JobUse> jobs_on(const View &view, const ViewGpu &gpu) {
    std::map<std::string, JobUse> out;
    for (const ViewUse &use : gpu.uses) {
        const control::GpuStatus *books = books_of(view, use);
        if (!books || !books->job_cap) continue;
        JobUse &job = out[view.processes[use.process].status->job];
        job.held = std::max(job.held, books->job_held);
        job.cap = std::min(job.cap, *books->job_cap);
    }
    return out;
}

std::vector<std::size_t> on_no_gpu(const View &view) {
    std::set<std::size_t> placed;
    for (const ViewGpu &gpu : view.gpus)
        for (const ViewUse &use : gpu.uses) placed.insert(use.process);
    std::vector<std::size_t> out;
    for (std::size_t i = 0; i < view.processes.size(); ++i)
        if (!placed.contains(i)) out.push_back(i);
    return out;
}

const ViewGpu *whole_of(const View &view, const ViewGpu &gpu) {
    if (gpu.parent.empty()) return &gpu;
    const auto found =
        std::find_if(view.gpus.begin(), view.gpus.end(), [&](const ViewGpu &one) { return one.uuid == gpu.parent; });
    return found == view.gpus.end() ? nullptr : &*found;
}

View join(const ViewFacts &facts) { return Join(facts).done(); }

}  // namespace curb::cli
