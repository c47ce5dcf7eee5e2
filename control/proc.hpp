// What /proc says of other processes, each of which may end while it is read. Private to control/.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>

namespace curb::control {

// "process 4711"
std::string process_text(int pid);
// /proc/PID/WHAT, as much of it as can be read.
std::string proc_text(int pid, const char *what);
// The value of "NAME:" in /proc/PID/status, without blanks around it; empty: it is not there.
std::string status_field(int pid, std::string_view name);
// Whether it has ended; a zombie has.
bool has_ended(int pid);
// Whether a signal or a debugger has stopped it.
bool is_stopped(int pid);
// Ours, where it cannot be found out.
uid_t owner_of(int pid);

}  // namespace curb::control
