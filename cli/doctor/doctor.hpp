// Finds problems of this machine, or why curb is not in effect in a process. doctor_facts collects facts;
// doctor_machine and doctor_process, which are pure, turn them into findings.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "abi/cuda_abi.h"
#include "config/load.hpp"
#include "control/status.hpp"
#include "machine/libraries.hpp"
#include "machine/view.hpp"
#include "policy/values/size.hpp"

namespace curb::cli {

enum class Verdict { ok, note, problem };
const char *verdict_name(Verdict verdict);

struct Finding {
    const char *check;  // its subject: "driver"; stays the same between versions
    Verdict verdict{};
    std::string text;    // one sentence, without a full stop
    std::string remedy;  // empty: there is nothing to do
};
using Findings = std::vector<Finding>;
bool has_problem(const Findings &findings);

// Adds the findings of one check. Each function adds its finding if `when` is true, and returns `when`. So a chain of
// || adds the first finding that applies.
class Check {
  public:
    Check(const char *name, Findings &out) : name_(name), out_(out) {}
    bool ok(bool when, std::string text) const { return add(when, Verdict::ok, std::move(text), {}); }
    bool note(bool when, std::string text, std::string remedy = {}) const {
        return add(when, Verdict::note, std::move(text), std::move(remedy));
    }
    bool problem(bool when, std::string text, std::string remedy) const {
        return add(when, Verdict::problem, std::move(text), std::move(remedy));
    }

  private:
    bool add(bool when, Verdict verdict, std::string text, std::string remedy) const {
        if (when) out_.push_back({name_, verdict, std::move(text), std::move(remedy)});
        return when;
    }
    const char *name_;
    Findings &out_;
};

// Adds the note that NVML does not list a process, if `when` is true. Returns `when`. `which`: "it", "process 4711".
bool note_unlisted(const Check &check, bool when, const std::string &which);

// The driver that a program started here would load.
struct DriverCondition {
    std::string fault;    // why it cannot be loaded; empty: it can
    bool silent = false;  // it did not answer in time
    CUresult init{};
    std::string init_text;  // "CUDA_ERROR_NO_DEVICE (no CUDA-capable device is detected)"
    int cuda = 0;           // of cuDriverGetVersion: 13000
    bool has_checkpoint = false;
    std::vector<std::string> no_vmm;     // devices without virtual memory management: "cuda:1"
    std::vector<std::string> unified;    // devices that share the host's memory
    std::string version;                 // of the driver: "580.159.04"; empty: not known
    std::string kernel;                  // of the kernel module; empty: not loaded, or not visible here
    bool has_device_files = false;       // /dev/nvidiactl exists
    std::vector<std::string> closed;     // device files that this user may not open
    std::optional<std::string> visible;  // CUDA_VISIBLE_DEVICES here
};

// The libcurb.so that `curb run` would use.
struct LibraryCondition {
    std::string fault;  // why there is none
    std::string path;
    std::optional<Elf> elf;              // nullopt: it cannot be read
    std::optional<Elf> command;          // of this program
    unsigned mode = 0, folder_mode = 0;  // permission bits
    bool no_exec = false;                // its file system is mounted noexec
    std::string not_carried;             // why LD_PRELOAD cannot name it; empty: it can
    std::string python_clash;            // see python_clash()
};

// A `curb` command of this machine, and its library.
struct Installation {
    std::string command, library;
    std::string version;  // of the command; empty: not known
    std::string removal;  // how to remove it: "pip uninstall curb-gpu in /venv"
};
struct Installations {
    Installation own;                  // this command
    std::string first;                 // the first in PATH; empty: none is
    std::vector<Installation> others;  // in PATH, /usr/local/bin and /usr/bin
};
Installations installations();
// Returns the folder of Python packages under `prefix` that has both our wheel, curb-gpu, and PyPI's other project
// `curb`. Both install a Python module `curb`, and pip lets the later one overwrite the other's files. Empty if there
// is none.
std::string python_clash(const std::filesystem::path &prefix);

// The contents of /etc/ld.so.preload, which the loader reads for every program of the machine.
struct PreloadFile {
    bool names_curb = false;
    std::string missing;  // a libcurb.so that it names and that does not exist
};

struct RuntimeCondition {
    std::string folder;       // in use; empty: none is usable
    std::string fault;        // why none is usable
    std::string xdg;          // XDG_RUNTIME_DIR
    std::string passed_over;  // why the folders before it are not used; empty: there is none before it
};

struct PolicyCondition {
    config::Source source;
    config::Diagnostics faults;
    bool has_ceiling = false;
};

struct MachineCondition {
    DriverCondition driver;
    NvmlGpus nvml = std::vector<GpuState>();
    LibraryCondition library;
    Installations installations;
    PreloadFile preload_file;
    RuntimeCondition runtime;
    PolicyCondition policy;
    View view;
};
// Takes seconds if no GPU has persistence mode on, and longer if the driver hangs (within.hpp). Changes nothing, except
// that it creates the user's runtime folder, as every program under curb does.
MachineCondition inspect_machine();
Findings examine(const MachineCondition &facts);

// A library that a process has mapped.
struct Mapped {
    std::string path;
    std::uint64_t begin = 0;
    bool deleted = false;  // its file was replaced or removed since
};

inline constexpr std::string_view kPreloadFile = "/etc/ld.so.preload";

// A libcurb.so that a process preloads, seen from that process's root.
struct Preloaded {
    std::string path;
    bool there = false;
    std::optional<Elf> elf;
    std::string_view by = "LD_PRELOAD";  // or kPreloadFile, of which a container may have its own
    int glibc = 0;                       // minor version of glibc that it needs: 34 of 2.34; 0: not known
};

struct ProcessCondition {
    int pid = 0;
    control::UnixMs now = 0;
    unsigned user = 0;  // effective user of this command
    bool there = false;
    bool ended = false;  // a zombie
    bool kernel_thread = false;
    int thread_of = 0;  // 0: it is a process
    std::string name;   // "4711 (python3)"
    unsigned owner = 0;
    std::string owner_name;
    unsigned acts_as = 0;                // its effective user
    bool readable = false;               // its memory map and environment can be read
    std::optional<Elf> program;          // nullopt: it cannot be read
    std::optional<Elf> library;          // the libcurb.so that `curb run` would use
    bool secure = false;                 // AT_SECURE: the loader ignored LD_PRELOAD
    std::optional<std::string> preload;  // LD_PRELOAD at its start
    std::string has_settings;            // a variable of curb that was set at its start: "CURB_CAP"; empty: none
    std::vector<Preloaded> preloaded;
    int glibc = 0;  // minor version of its glibc: 31 of 2.31; 0: not known
    std::vector<Mapped> curb, driver, tensorflow;
    std::optional<control::Status> status;
    std::string silence;      // why there is no `status`: the message of control::ask
    bool has_socket = false;  // it listens on a control socket
    std::string no_socket;    // why it cannot make one; empty: it can, or that is not known
    bool stopped = false;
    bool suspended = false;                  // by curb suspend
    int inner_pid = 0;                       // its pid in its own pid namespace; 0: it is in ours
    int forked_from = 0;                     // the process under curb that it is a fork of; 0: none
    std::string version;                     // of this command
    std::optional<std::vector<int>> listed;  // pids that hold GPU memory, by NVML; nullopt: not known
};
ProcessCondition inspect_process(int pid);
Findings examine(const ProcessCondition &facts);

}  // namespace curb::cli
