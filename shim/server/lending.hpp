// Serves processes that open memory of this one by CUDA IPC. On a thread of its own, which ends when none waits: it
// waits at the gate while the process is out of its GPUs, and calls the driver.
#pragma once

#include <sys/types.h>

#include <functional>

#include "control/memory.hpp"

namespace curb::shim::lending {

// Called once, on that thread or within ask(). Does not throw.
using Answer = std::function<void(control::MemoryAnswer)>;
// `by`: the process that asks; 0 if it is not visible here. Thread-safe. May throw std::bad_alloc; then it does not
// call `answer`.
void ask(const control::MemoryRequest &request, pid_t by, Answer answer);

}  // namespace curb::shim::lending
