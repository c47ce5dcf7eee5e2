// The host memory that a process can still allocate, and the processors that it may use.
#pragma once

#include <optional>
#include <string>

#include "policy/values/size.hpp"

namespace curb::control {

// Before the machine or a limit of the process's cgroup stops it.
struct HostRoom {
    policy::Bytes available = 0;
    std::string limit;  // "this machine", "the cgroup /job/7"
    policy::Bytes total = 0;
    friend bool operator==(const HostRoom &, const HostRoom &) = default;
};
// Returns nullopt if /proc/meminfo cannot be read. Tests pass other folders. May throw std::bad_alloc.
std::optional<HostRoom> host_room(int pid, const std::string &proc = "/proc",
                                  const std::string &cgroups = "/sys/fs/cgroup");

// Returns how many processors' time its cgroups allow the process. nullopt if no quota limits it. Tests pass other
// folders. May throw std::bad_alloc.
std::optional<double> processor_quota(int pid, const std::string &proc = "/proc",
                                      const std::string &cgroups = "/sys/fs/cgroup");

}  // namespace curb::control
