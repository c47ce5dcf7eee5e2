// Whole processes out to host memory and back, as the driver does it for whoever asks: docs/results/driver.md. Contents
// stay where they are, in the process's own address space; what moves is what is held of the devices.
#include <cerrno>
#include <csignal>

#include "driver.hpp"

namespace curb::sim {

namespace {

// Of a process that the machine does not know (measured on an H200).
CUresult unknown(int pid) {
    return kill(pid, 0) != 0 && errno == ESRCH ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult result_of(Step step, int pid) {
    switch (step) {
        case Step::done: return CUDA_SUCCESS;
        case Step::unknown_process: return unknown(pid);
        case Step::wrong_state: return CUDA_ERROR_ILLEGAL_STATE;
        case Step::timed_out: return CUDA_ERROR_NOT_READY;
        case Step::not_supported: return CUDA_ERROR_NOT_SUPPORTED;
        case Step::no_room: return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return CUDA_ERROR_UNKNOWN;
}

// These wait for other processes, so the caller's own calls must go on meanwhile.
template <class Do>
CUresult of_process(int pid, Do &&act) {
    Machine &machine = *driver().machine;
    Step step = Step::done;
    run_unlocked([&] { step = act(machine); });
    return result_of(step, pid);
}

}  // namespace

SIM_CU(cuCheckpointProcessGetState, (int pid, CUprocessState *state), (pid, state)) {
    if (!state) return CUDA_ERROR_INVALID_VALUE;
    ProcessState found{};
    if (!driver().machine->find(pid, &found)) return unknown(pid);
    *state = static_cast<CUprocessState>(found);
    return CUDA_SUCCESS;
}

// The simulated driver has no thread in the process: its main thread stands for it.
SIM_CU(cuCheckpointProcessGetRestoreThreadId, (int pid, int *thread), (pid, thread)) {
    ProcessState found{};
    if (!thread) return CUDA_ERROR_INVALID_VALUE;
    if (!driver().machine->find(pid, &found)) return unknown(pid);
    *thread = pid;
    return CUDA_SUCCESS;
}

SIM_CU(cuCheckpointProcessLock, (int pid, CUcheckpointLockArgs *arguments), (pid, arguments)) {
    const unsigned milliseconds = arguments ? arguments->timeoutMs : 0;
    return of_process(pid, [&](Machine &machine) { return machine.lock_process(pid, milliseconds); });
}

SIM_CU(cuCheckpointProcessCheckpoint, (int pid, [[maybe_unused]] CUcheckpointCheckpointArgs *arguments),
       (pid, arguments)) {
    return of_process(pid, [&](Machine &machine) { return machine.move_out(pid); });
}

SIM_CU(cuCheckpointProcessRestore, (int pid, CUcheckpointRestoreArgs *arguments), (pid, arguments)) {
    if (arguments && arguments->gpuPairsCount) return CUDA_ERROR_NOT_SUPPORTED;  // onto other devices: not simulated
    return of_process(pid, [&](Machine &machine) { return machine.move_back(pid); });
}

SIM_CU(cuCheckpointProcessUnlock, (int pid, [[maybe_unused]] CUcheckpointUnlockArgs *arguments), (pid, arguments)) {
    return of_process(pid, [&](Machine &machine) { return machine.unlock_process(pid); });
}

}  // namespace curb::sim
