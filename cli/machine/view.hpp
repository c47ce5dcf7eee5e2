// The users of this machine's GPUs: NVML's figures, the answers of capped processes, and /proc, joined by pid and UUID.
// `curb ps`, `curb metrics` and `curb doctor` show it.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "control/client.hpp"
#include "control/status.hpp"
#include "driver.hpp"
#include "policy/result.hpp"
#include "policy/size.hpp"

namespace curb::cli {

struct ViewProcess {
    int pid = 0;
    std::string user;       // name, or number where it has none; empty: not known
    std::string name;       // the kernel's, 15 bytes: "python3"; empty: not known (another pid namespace, ended)
    std::string command;    // its arguments, joined by blanks, on one line; the name where they cannot be read
    std::string container;  // the beginning of its container's id, as docker ps prints it; empty: none is known
    bool stopped = false;
    bool suspended = false;                 // by curb suspend, or by a nap
    bool elsewhere = false;                 // in another pid namespace: nothing is known but NVML's figures
    bool under_curb = false;                // it can be asked, or libcurb.so is mapped
    std::optional<control::Status> status;  // its answer; nullopt: see `trouble`
    std::string trouble;                    // why a process under curb gives none: "has not answered for 300 ms: …"
};

// One process on one GPU.
struct ViewUse {
    std::size_t process = 0;            // index into View::processes
    std::optional<std::size_t> books;   // index into its status->gpus; nullopt: it has not answered
    std::optional<policy::Bytes> nvml;  // held, as NVML reports; nullopt: NVML does not list it
};

struct ViewGpu {
    std::optional<int> index;  // nvidia-smi's; of an instance, among those of its GPU; nullopt: not known
    std::string uuid;          // "GPU-…", of an instance "MIG-…"
    std::string parent;        // of an instance: the GPU that it is part of, "GPU-…"
    std::string name;          // "NVIDIA H100 80GB HBM3"; empty: not known
    policy::Bytes total = 0;
    std::optional<policy::Bytes> used, free;  // as NVML reports; nullopt: not known
    bool mig = false;                         // it is divided, or an instance of one that is
    std::vector<ViewUse> uses;                // the largest first
};

struct View {
    std::string nvml_fault;              // why there are no figures of NVML's; empty: there are
    std::vector<ViewGpu> gpus;           // by index, instances behind their GPU
    std::vector<ViewProcess> processes;  // by pid; one without a use holds nothing, or has not answered
};

// What a process does. If several apply, the first.
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
// "running", "over cap"
const char *state_name(State state);
// Returns the state on one GPU; without `books`, on all of them.
State state_of(const ViewProcess &process, const control::GpuStatus *books = nullptr);
// True if the process holds more of the GPU than its cap. A suspended process holds nothing, even if its ledger does.
bool is_over_cap(const ViewProcess &process, const control::GpuStatus &books);

// Returns the view of now. Takes as long as the slowest capped process needs to answer, and at most `patience`.
View poll_all(std::chrono::milliseconds patience);

// Asks these processes in detail, one after the other. The view also has the processes that NVML lists.
struct Polled {
    View view;
    std::map<int, std::string> failures;  // by pid: why there is no answer, with the remedy
};
Polled poll(const std::vector<int> &pids, std::chrono::milliseconds patience);

// Returns the part of the view that is about these processes.
View only(const View &view, const std::vector<int> &pids);
// Returns the process's own figures for a device. null if it did not answer.
const control::GpuStatus *books_of(const View &view, const ViewUse &use);
// Returns the GPU that an instance is part of, or the GPU itself. null if it is not known.
const ViewGpu *whole_of(const View &view, const ViewGpu &gpu);

// A process as /proc shows it: under_curb if libcurb.so is mapped.
struct ProcessFacts : ViewProcess {
    bool lives = false;  // false: there is none (any more) in this pid namespace, or it is a zombie
};

struct ViewFacts {
    NvmlGpus gpus;
    std::vector<control::Answer> answers;
    // That `gpus` or `answers` name, by pid. A process that only NVML lists is in another pid namespace.
    std::vector<ProcessFacts> processes;
};
// Joins the facts, each from its own source, into one View. Pure.
View join(const ViewFacts &facts);

}  // namespace curb::cli
