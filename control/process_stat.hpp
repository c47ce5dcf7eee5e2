// Reads /proc/PID/stat. Used in capped processes too. Private to control/.
#pragma once

#include <cstdint>
#include <optional>

namespace curb::control {

struct ProcessStat {
    char state = 0;
    long threads = 0;
    unsigned long flags = 0;  // PF_… of the kernel
    bool killed = false;      // the first thread is to end, by SIGKILL or with the process
    std::uint64_t start = 0;  // clock ticks since boot: tells the process from a later one with the same pid

    // True for a zombie. A first thread that ended before the others (pthread_exit in main) looks like one too, but
    // other threads are left.
    [[nodiscard]] bool has_ended() const noexcept { return state == 'X' || (state == 'Z' && threads <= 1); }
};
// Returns nullopt if there is no such process, or /proc cannot be read; errno is then ENOENT or ESRCH only in the first
// case. Allocates nothing.
std::optional<ProcessStat> stat_of(int pid) noexcept;

}  // namespace curb::control
