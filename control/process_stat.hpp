// What /proc/PID/stat says of a process. Used in capped processes too. Private to control/.
#pragma once

#include <cstdint>
#include <optional>

namespace curb::control {

struct ProcessStat {
    char state = 0;
    long threads = 0;
    std::uint64_t start = 0;  // clock ticks since boot: tells the process from a later one with the same pid

    // Only waited for. A first thread that has left the others to go on (pthread_exit in main) looks like a zombie too,
    // but is not alone.
    [[nodiscard]] bool has_ended() const noexcept { return state == 'X' || (state == 'Z' && threads <= 1); }
};
// None: there is no such process, or /proc is not to be had. Allocates nothing.
std::optional<ProcessStat> stat_of(int pid) noexcept;

}  // namespace curb::control
