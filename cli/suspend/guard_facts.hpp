// Collects the facts about a process before it is suspended or resumed.
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
// Asks the process for its status, over its socket. A suspended process answers too. The error says why there is no
// answer.
policy::Result<control::Status, std::string> ask_books(const Target &target);
Books books_of(const Target &target);
// Returns the pid of another process that holds GPU memory, if both have the same parent and the parent runs the same
// program. That is torch.multiprocessing, whose ranks show in no environment. 0 if there is none.
int companion_of(const Target &target, const std::vector<GpuState> &gpus);

}  // namespace curb::cli
