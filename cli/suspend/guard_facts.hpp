// What curb finds out about a process before it suspends or resumes it.
#pragma once

#include "control/messages.hpp"
#include "driver.hpp"
#include "guards.hpp"
#include "nvml.hpp"

namespace curb::cli {

struct Machine {
    policy::Result<Driver, std::string> driver;
    policy::Result<Nvml, std::string> nvml;

    [[nodiscard]] policy::Result<std::vector<GpuState>, std::string> gpus() const;
};
// Loads both libraries; the driver may take seconds.
Machine open_machine();

DriverFacts facts_of(const Machine &machine, int pid);
// The process's own account of itself, over its socket. It answers while it is suspended, too.
policy::Result<control::Status, std::string> ask_books(const Target &target);
Books books_of(const Target &target);
// A process beside this one, of the same parent, that holds GPU memory, where the parent is the same program (as of
// torch.multiprocessing, whose ranks show in no environment); 0: none.
int companion_of(const Target &target, const std::vector<GpuState> &gpus);

}  // namespace curb::cli
