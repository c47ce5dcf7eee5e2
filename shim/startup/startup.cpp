// The constructor, and the hook of cuInit, which activates curb once the driver is initialised.

#include <link.h>
#include <pthread.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>

#include "base/keep_errno.hpp"
#include "base/libraries.hpp"
#include "base/waiting.hpp"
#include "control/version_note.hpp"
#include "device/devices.hpp"
#include "driver/driver.hpp"
#include "host/log.hpp"
#include "host/log_file.hpp"
#include "host/process_state.hpp"
#include "host/unwinder.hpp"
#include "nap/helper.hpp"
#include "release/allocators.hpp"
#include "runtime/policy_watcher.hpp"
#include "runtime/runtime.hpp"
#include "runtime/worker.hpp"
#include "server/server.hpp"
#include "startup/before_main.hpp"
#include "threads/last_thread.hpp"
#include "threads/own_socket.hpp"
#include "threads/signals.hpp"
#include "trace/trace.hpp"
#include "trace/writer.hpp"

namespace curb::shim::startup {
namespace {

constinit std::once_flag once;

// CURB_POLICY as an absolute path, if it is relative: the program may change its working directory before cuInit.
// Otherwise `is_absolute` stays true. So it is initialised data, whose page every start touches anyway.
constinit char policy_at_start[4096] = {};
constinit bool is_absolute = true;

[[gnu::cold]] void note_relative_policy() {
    const char *path = getenv("CURB_POLICY");
    if (!path || !*path || *path == '/' || !getcwd(policy_at_start, sizeof policy_at_start)) return;
    const std::size_t folder = strlen(policy_at_start), name = strlen(path);
    is_absolute = folder + 1 + name >= sizeof policy_at_start;
    if (is_absolute) return;
    policy_at_start[folder] = '/';
    memcpy(policy_at_start + folder + 1, path, name + 1);
}

[[gnu::cold]] const char *environment(const char *name) noexcept {
    return !is_absolute && strcmp(name, "CURB_POLICY") == 0 ? policy_at_start : getenv(name);
}

// True if this segment of a program has the note of curb's own programs.
[[gnu::cold]] bool has_our_note(const char *at, std::size_t size, std::size_t align) noexcept {
    const auto padded = [=](std::size_t bytes) { return (bytes + align - 1) / align * align; };
    ElfW(Nhdr) note{};
    while (size >= sizeof note) {
        memcpy(&note, at, sizeof note);
        const std::size_t whole = padded(sizeof note + note.n_namesz) + padded(note.n_descsz);
        if (whole > size) return false;
        if (note.n_type == control::kCommandNote && note.n_namesz == sizeof control::kNoteOwner &&
            memcmp(at + sizeof note, control::kNoteOwner, sizeof control::kNoteOwner) == 0)
            return true;
        at += whole;
        size -= whole;
    }
    return false;
}

// True if the program has this segment in its memory. (The headers of a packed program may lie.)
[[gnu::cold]] bool is_loaded(const dl_phdr_info &program, const ElfW(Phdr) & wanted) noexcept {
    for (int i = 0; i < program.dlpi_phnum; ++i) {
        const auto &segment = program.dlpi_phdr[i];
        if (segment.p_type == PT_LOAD && (segment.p_flags & PF_R) != 0 && wanted.p_vaddr >= segment.p_vaddr &&
            wanted.p_memsz <= segment.p_filesz && wanted.p_vaddr - segment.p_vaddr <= segment.p_filesz - wanted.p_memsz)
            return true;
    }
    return false;
}

// True in the command `curb`. It must see the machine as it is, take part in no job, and never wait for memory,
// whatever has loaded this library into it (LD_PRELOAD, /etc/ld.so.preload). A program can gain no more by such a note
// than by unsetting LD_PRELOAD.
[[gnu::cold]] bool is_the_command() noexcept {
    bool found = false;
    any_library([&](const dl_phdr_info &program) {  // the first one is the program
        for (int i = 0; i < program.dlpi_phnum && !found; ++i) {
            const auto &segment = program.dlpi_phdr[i];
            constexpr std::size_t kNarrow = 4, kWide = 8;
            found = segment.p_type == PT_NOTE && is_loaded(program, segment) &&
                    has_our_note(reinterpret_cast<const char *>(program.dlpi_addr + segment.p_vaddr), segment.p_memsz,
                                 segment.p_align == kWide ? kWide : kNarrow);
        }
        return true;
    });
    return found;
}

// curb's only constructor: does the work that must precede main. glibc passes it main's arguments. Every start of a
// program pays for it, mostly by page faults. So the functions that each start and each end call are marked cold: the
// linker places such code beside constructors.
__attribute__((constructor)) void at_load(int /*count*/, char ** /*arguments*/, char **variables) {
    const KeepErrno keep_errno;
    if (is_the_command()) {
        process::state = process::State::passing;
        return;
    }
    log::check_stderr();
    last_thread::watch();
    note_relative_policy();
    Helper::note_environment(variables);
    before_main::set_environment(environment, variables);
}

// Threads that no longer exist in a fork child may hold curb's locks, so it takes none, and destroys no state: a
// destructor could wait for one of those locks.
void in_fork_child() {
    const KeepErrno keep_errno;  // of fork; closing a descriptor here may fail
#define CURB_IN_FORK_CHILD(call, why) call;
#include "startup/fork_child.def"
}

// Throws std::bad_alloc before curb is active; then it may be called again.
void start() {
    last_thread::watch();  // for a child forked by a thread other than the main one
    devices::discover();
    allocators::read_environment();
    policy_watcher::note_first(runtime::begin(environment));
    if (pthread_atfork(nullptr, nullptr, in_fork_child) != 0 || atexit(gate::at_exit) != 0) throw std::bad_alloc();
    process::state = process::State::active;
    worker::start();
    policy_watcher::start();
    server::start();
    runtime::take_signal();
}

// Finds the devices, reads the policy and starts the threads, after cuInit has succeeded. Later calls return true.
// False if there is no host memory: curb is not active, and the program may call cuInit again. Thread-safe.
bool activate() noexcept {
    if (process::state != process::State::asleep) return true;
    const KeepErrno keep_errno;
    constexpr int kTries = 20;
    for (int tries = 0; tries < kTries; ++tries) {
        try {
            if (unwinder::load()) {
                std::call_once(once, start);
                return true;
            }
        } catch (...) {
        }
        sleep_ms(1);  // out of host memory, perhaps only for a moment
    }
    if (unwinder::load())
        log::write(policy::LogLevel::error,
                   "out of host memory: the policy cannot be read, so the program cannot use CUDA now");
    else  // without the unwinder nothing that may throw can run, not even the log
        log::LogFile().write("curb: libgcc_s.so.1 cannot be loaded, so the program cannot use CUDA now\n");
    return false;
}

}  // namespace
}  // namespace curb::shim::startup

using namespace curb::shim;

CUresult cuInit(unsigned flags) {
    const CUresult result = driver().cuInit(flags);
    if (!driver_loaded()) return result;
    // Without host memory curb cannot read the policy, so the program must not run uncapped; it may try again.
    return result == CUDA_SUCCESS && !startup::activate() ? CUDA_ERROR_OUT_OF_MEMORY : result;
}
