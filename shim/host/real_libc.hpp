// The libc functions that curb stands in front of, as the next library in the search order has them; of dlsym and
// dlvsym glibc's own too, by which curb itself looks up: what another preload answers for the driver is not the
// driver's.
//
// Safe from the first instruction of the process on: other libraries' constructors call dlsym and sigaction before ours
// have run. Nothing here allocates.
#pragma once

#include <link.h>

#include <csignal>
#include <ctime>

namespace curb::shim::real {

using Dlsym = void *(void *, const char *);
using Dlvsym = void *(void *, const char *, const char *);
using Sigaction = int(int, const struct sigaction *, struct sigaction *);
using Handler = void (*)(int);
using Signal = Handler(int, Handler);
using Sigignore = int(int);
using Siginterrupt = int(int, int);
using ClockGettime = int(clockid_t, timespec *);

// glibc's own function of this name, whatever is preloaded; null: it has none. Exact names of libc.so.6 or libdl.so.2.
void *glibcs(const char *name) noexcept;

// The function `name` that one loaded object defines, by its base address and dynamic section. Returns nullptr if it
// defines none.
void *defined_in(ElfW(Addr) base, const ElfW(Dyn) * dynamic, const char *name) noexcept;

Dlsym *dlsym() noexcept;
Dlvsym *dlvsym() noexcept;
// Not another preload's, whose clocks may stand still or run backwards (libfaketime).
ClockGettime *clock_gettime() noexcept;
Dlsym *next_dlsym() noexcept;
Dlvsym *next_dlvsym() noexcept;
Sigaction *sigaction() noexcept;
Signal *signal() noexcept;
Signal *sysv_signal() noexcept;
Signal *sigset() noexcept;
Sigignore *sigignore() noexcept;
Siginterrupt *siginterrupt() noexcept;

}  // namespace curb::shim::real
