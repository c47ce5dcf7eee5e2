// The users of this machine's GPUs. Joins NVML's figures, the answers of processes under curb, and /proc.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "control/board.hpp"
#include "control/client.hpp"
#include "control/status.hpp"
#include "machine/driver.hpp"
#include "policy/decisions/growth.hpp"
#include "policy/values/size.hpp"

namespace curb::cli {

struct ViewProcess {
    int pid = 0;
    std::string user;       // name, or uid if it has none; empty: not known
    std::string name;       // the kernel's, 15 bytes: "python3"; empty: not known (another pid namespace, ended)
    std::string command;    // its arguments, joined by blanks, on one line; the name if they cannot be read
    std::string container;  // the beginning of its container's id, as docker ps prints it; empty: not known
    bool stopped = false;
    bool suspended = false;  // by curb suspend, or by a nap
    // In another pid namespace: only what NVML says is known, with the pid here, or what it posts, with its pid there.
    bool elsewhere = false;
    bool under_curb = false;                // it can be asked, or libcurb.so is mapped
    std::optional<control::Status> status;  // its answer; nullopt: see `trouble`
    std::string trouble;  // why a process under curb has no status: "has not answered for 300 ms: …"
    bool unseen = false;  // of another user, who alone may look whether it is under curb
    std::optional<control::board::Entry> posted{};  // what it posts for all users; nullopt: nothing
};

// False if `pid` is that of another pid namespace: here another process may have it.
[[nodiscard]] inline bool has_pid_here(const ViewProcess &process) { return !process.elsewhere || !process.posted; }
// Returns the pid namespace whose pid the process has. 0: this one. Several processes of a view may have the same pid,
// but only one of each namespace, unless a user posts what is not so.
[[nodiscard]] inline std::uint64_t namespace_of(const ViewProcess &process) {
    return has_pid_here(process) ? 0 : process.posted->pid_namespace;
}
// True if the process is under curb. nullopt: this user cannot know.
std::optional<bool> is_under_curb(const ViewProcess &process);

// One process on one GPU.
struct ViewUse {
    std::size_t process = 0;              // index into View::processes
    std::optional<std::size_t> books;     // index into its status->gpus; nullopt: it has not answered
    std::optional<policy::Bytes> nvml;    // held, as NVML reports; nullopt: NVML does not list it
    std::optional<std::size_t> posted{};  // index into its posted->gpus; nullopt: none
    // Of what it holds, the bytes that it has not used for a minute: all or none. nullopt: not known.
    std::optional<policy::Bytes> idle{};
};

struct ViewGpu {
    std::optional<int> index;  // nvidia-smi's; of an instance, among those of its GPU; nullopt: not known
    std::string uuid;          // "GPU-…", of an instance "MIG-…"
    std::string parent;        // of an instance: the GPU that it is part of, "GPU-…"
    std::string name;          // "NVIDIA H100 80GB HBM3"; empty: not known
    policy::Bytes total = 0;
    std::optional<policy::Bytes> used, free;               // as NVML reports, or of the host; nullopt: not known
    bool mig = false;                                      // it is divided, or an instance of one that is
    std::vector<ViewUse> uses;                             // the largest first
    std::optional<unsigned> utilization{}, temperature{};  // in percent, in degrees Celsius; nullopt: not known
    bool shares_host_memory = false;                       // the figures are those of the host
    int next = 0;  // the process for whose turn others leave next; 0: none waits, or it is in another pid namespace
};

struct View {
    std::string nvml_fault;              // why NVML's figures are missing; empty: they are here
    std::vector<ViewGpu> gpus;           // by index, instances behind their GPU
    std::vector<ViewProcess> processes;  // by pid; one without a use holds nothing, or has not answered
};

// The state of a process. If several apply, the first.
enum class State : std::uint8_t {
    unknown,    // in another pid namespace
    napping,    // it has left its GPUs by itself
    suspended,  // by curb suspend
    stopped,    // by a signal
    no_curb,
    silent,   // under curb, and it does not answer
    waiting,  // for memory
    over_cap,
    releasing,
    running,
};
inline constexpr std::size_t kStates = 10;
// Returns "running", "over cap", …
const char *state_name(State state);
// Returns the state of the process on one GPU, or without `books` on all of them.
State state_of(const ViewProcess &process, const control::GpuStatus *books = nullptr);
// True if the process holds more of the GPU than its cap. False for a suspended process: its memory is in host memory.
bool is_over_cap(const ViewProcess &process, const control::GpuStatus &books);

// Returns the present view. Takes as long as the slowest process under curb needs to answer, at most `patience`, and as
// nvml_gpus(). Throws std::system_error if curb may open too few files to see the processes.
View poll_all(std::chrono::milliseconds patience);

// Asks these processes for details, all at the same time. The view also has the processes that NVML lists.
struct Polled {
    View view;
    std::map<int, std::string> failures;  // by pid: why it did not answer, with the remedy
};
Polled poll(const std::vector<int> &pids, std::chrono::milliseconds patience);

// Returns the part of the view that is about these processes. `processes`: indices into View::processes.
View only(const View &view, const std::vector<std::size_t> &processes);
// True if it is the process for whose turn others leave the GPU next.
[[nodiscard]] inline bool is_next(const ViewGpu &gpu, const ViewProcess &process) {
    return gpu.next == process.pid && has_pid_here(process);
}
// Returns what the process posts about the device. Returns null if it posts nothing.
const control::board::Gpu *posted_of(const View &view, const ViewUse &use);
// Returns the bytes of the GPU that are held without use for a minute, as far as is known: by each user.
std::map<std::string, policy::Bytes> idle_on(const ViewGpu &gpu, const View &view);
// Returns the process's own figures for the device. Returns null if it did not answer.
const control::GpuStatus *books_of(const View &view, const ViewUse &use);
// The bytes that the processes of one job hold of one GPU together, and their cap: of several policies the lowest.
struct JobUse {
    policy::Bytes held = 0, cap = policy::kUnbounded;
};
// Returns the jobs with a cap on the GPU, by name. Every process of a job reports the sum.
std::map<std::string, JobUse> jobs_on(const View &view, const ViewGpu &gpu);
// Returns the processes that are on no GPU.
std::vector<std::size_t> on_no_gpu(const View &view);
// Returns the GPU that an instance is part of, or the GPU itself. Returns null if it is not known.
const ViewGpu *whole_of(const View &view, const ViewGpu &gpu);

// A process as /proc shows it: under_curb if libcurb.so is mapped.
struct ProcessFacts : ViewProcess {
    bool lives = false;  // false: no process, or only a zombie, has this pid in this pid namespace
    std::uint64_t start = 0;
    unsigned uid = 0;
    int inner_pid = 0;  // as it sees itself
};

// An entry of the board, with the process's pid in this pid namespace; 0: it is in another one, and cannot be seen
// here.
struct PostedFacts {
    int pid = 0;
    control::board::Entry entry;
    std::string user{};  // if `pid` is 0
};

struct ViewFacts {
    NvmlGpus gpus;
    std::vector<control::Answer> answers;
    // The processes that `gpus` or `answers` name, by pid. One that only NVML lists is in another pid namespace.
    std::vector<ProcessFacts> processes;
    std::vector<PostedFacts> posted{};
    std::map<std::string, int> next{};  // ViewGpu::next, by UUID
    control::UnixMs now = 0;
};
// Joins the facts into one View. Pure.
View join(const ViewFacts &facts);

}  // namespace curb::cli
