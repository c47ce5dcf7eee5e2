// The constructor, and the hook of cuInit, which activates curb once the driver is initialised.

#include <pthread.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>

#include "allocators.hpp"
#include "before_main.hpp"
#include "devices.hpp"
#include "driver.hpp"
#include "keep_errno.hpp"
#include "last_thread.hpp"
#include "log.hpp"
#include "log_file.hpp"
#include "own_thread.hpp"
#include "policy_watcher.hpp"
#include "process.hpp"
#include "process_state.hpp"
#include "server.hpp"
#include "signals.hpp"
#include "trace.hpp"
#include "unwinder.hpp"
#include "wait_queue.hpp"
#include "waiting.hpp"
#include "worker.hpp"

namespace curb::shim::process {
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

// curb's only constructor: does the work that must precede main. glibc passes it main's arguments. Every start of a
// program pays for it, mostly by page faults. So the functions that each start and each end call are marked cold: the
// linker places such code beside constructors.
__attribute__((constructor)) void at_load(int /*count*/, char ** /*arguments*/, char **variables) {
    const KeepErrno keep_errno;
    log::check_stderr();
    last_thread::watch();
    note_relative_policy();
    before_main::set_environment(environment, variables);
}

// In a fork child, threads that no longer exist may hold curb's locks, and there is no worker. The driver returns
// CUDA_ERROR_NOT_INITIALIZED to all calls there, so curb forwards them. It destroys no state: a destructor could wait
// for one of those locks.
void in_fork_child() {
    const KeepErrno keep_errno;  // of fork; closing a descriptor here may fail
    state.store(State::passing, std::memory_order_relaxed);
    own_thread::in_fork_child();
    gate::in_fork_child();
    server::in_fork_child();
    trace::in_fork_child();
    wait_queue::in_fork_child();
    signals::restore_program_action();
}

// Throws std::bad_alloc before curb is active; then it may be called again.
void start() {
    last_thread::watch();  // for a child forked by a thread other than the main one
    devices::discover();
    allocators::read_environment();
    if (const auto loaded = begin(environment); !loaded) policy_watcher::note_unusable(loaded.error());
    if (pthread_atfork(nullptr, nullptr, in_fork_child) != 0 || atexit(gate::at_exit) != 0) throw std::bad_alloc();
    state.store(State::active, std::memory_order_release);
    worker::start();
    policy_watcher::start();
    server::start();
    take_signal();
}

// Finds the devices, reads the policy and starts the threads, after cuInit has succeeded. Later calls return true.
// False if there is no host memory: curb is not active, and the program may call cuInit again. Thread-safe.
bool activate() noexcept {
    if (state.load(std::memory_order_acquire) != State::asleep) return true;
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
}  // namespace curb::shim::process

using namespace curb::shim;

CUresult cuInit(unsigned flags) {
    const CUresult result = driver().cuInit(flags);
    if (!driver_loaded()) return result;
    // Without host memory curb cannot read the policy, so the program must not run uncapped; it may try again.
    return result == CUDA_SUCCESS && !process::activate() ? CUDA_ERROR_OUT_OF_MEMORY : result;
}
