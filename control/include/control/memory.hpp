// Asks a process under curb for GPU memory that it shares by CUDA IPC. Runs in capped processes, on the thread that
// opens or closes the memory.
#pragma once

#include <chrono>
#include <functional>

#include "control/descriptor.hpp"
#include "control/messages.hpp"
#include "control/runtime_dir.hpp"

namespace curb::control {

// The process that shares the memory.
struct Exporter {
    ProcessName process;
    uid_t user = 0;
};
struct MemoryAnswer {
    Reply reply;
    Descriptor memory{};  // beside a MemoryReport about memory that was opened
};
// Returns the process's answer. Waits for it as long as the process lives, at most `patience`, and calls `is_late` once
// if that takes 5 s. A Failure says why there is none: the process has ended, belongs to another user, or has no
// control socket in the folders that both use. Throws std::bad_alloc only. A cancelled thread leaves it by unwinding.
MemoryAnswer ask_for_memory(const Places &places, const Exporter &exporter, const MemoryRequest &request,
                            std::chrono::milliseconds patience, const std::function<void()> &is_late);

}  // namespace curb::control
