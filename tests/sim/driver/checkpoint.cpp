// Moves whole processes out to host memory and back, as the driver does on request: docs/results/driver.md. Contents
// stay in the process's own address space; only the figures of the devices move.
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "driver.hpp"

namespace curb::sim {

namespace {

// The error for a process that the machine does not know (measured on an H200).
CUresult unknown(int pid) {
    return kill(pid, 0) != 0 && errno == ESRCH ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_ERROR_NOT_INITIALIZED;
}

void throw_unless_done(Step step, int pid) {
    switch (step) {
        case Step::done: return;
        case Step::unknown_process: throw unknown(pid);
        case Step::wrong_state: throw CUDA_ERROR_ILLEGAL_STATE;
        case Step::timed_out: throw CUDA_ERROR_NOT_READY;
        case Step::not_supported: throw CUDA_ERROR_NOT_SUPPORTED;
        case Step::no_room: throw CUDA_ERROR_OUT_OF_MEMORY;
    }
}

int in_books(int pid) { return pid == ::getpid() ? own_pid() : pid; }

// Releases the model's lock: these calls wait for other processes, and the caller's other threads must go on.
template <class Do>
void of_process(int pid, Do &&act) {
    Machine &machine = *driver().machine;
    Step step = Step::done;
    run_unlocked([&] { step = act(machine, in_books(pid)); });
    throw_unless_done(step, pid);
}

}  // namespace

SIM_CU(12080, cuCheckpointProcessGetState, (int pid, CUprocessState *state), (pid, state)) {
    if (!state) throw CUDA_ERROR_INVALID_VALUE;
    ProcessState found{};
    if (!driver().machine->find(in_books(pid), &found)) throw unknown(pid);
    *state = static_cast<CUprocessState>(found);
}

// The simulated driver has no thread of its own, so it returns the process's main thread.
SIM_CU(12080, cuCheckpointProcessGetRestoreThreadId, (int pid, int *thread), (pid, thread)) {
    ProcessState found{};
    if (!thread) throw CUDA_ERROR_INVALID_VALUE;
    if (!driver().machine->find(in_books(pid), &found)) throw unknown(pid);
    *thread = pid;
}

SIM_CU(12080, cuCheckpointProcessLock, (int pid, CUcheckpointLockArgs *arguments), (pid, arguments)) {
    const unsigned milliseconds = arguments ? arguments->timeoutMs : 0;
    of_process(pid, [&](Machine &machine, int known) { return machine.lock_process(known, milliseconds); });
}

SIM_CU(12080, cuCheckpointProcessCheckpoint, (int pid, CUcheckpointCheckpointArgs *arguments), (pid, arguments)) {
    of_process(pid, [](Machine &machine, int known) { return machine.move_out(known); });
}

SIM_CU(12080, cuCheckpointProcessRestore, (int pid, CUcheckpointRestoreArgs *arguments), (pid, arguments)) {
    if (arguments && arguments->gpuPairsCount) throw CUDA_ERROR_NOT_SUPPORTED;  // onto other devices: not simulated
    of_process(pid, [](Machine &machine, int known) { return machine.move_back(known); });
}

SIM_CU(12080, cuCheckpointProcessUnlock, (int pid, CUcheckpointUnlockArgs *arguments), (pid, arguments)) {
    of_process(pid, [](Machine &machine, int known) { return machine.unlock_process(known); });
}

}  // namespace curb::sim
