// The libc functions that curb wraps, as the next library in the search order defines them. For dlsym and dlvsym also
// glibc's own: curb looks up driver functions with these, because another preload might return its own instead.
//
// Usable from the first instruction of the process: other libraries' constructors call dlsym and sigaction before
// curb's have run. Nothing here allocates.
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

// Returns the function `name` of libc.so.6 or libdl.so.2 itself, whatever is preloaded. Null if they have none.
void *glibcs(const char *name) noexcept;

// Returns the function `name` that one loaded object defines, by its base address and dynamic section. Null if none.
void *defined_in(ElfW(Addr) base, const ElfW(Dyn) * dynamic, const char *name) noexcept;

// glibc's own.
Dlsym *dlsym() noexcept;
Dlvsym *dlvsym() noexcept;
// glibc's own: another preload's clock may stand still or run backwards (libfaketime).
ClockGettime *clock_gettime() noexcept;
// The next in the search order.
Dlsym *next_dlsym() noexcept;
Dlvsym *next_dlvsym() noexcept;
Sigaction *sigaction() noexcept;
Signal *signal() noexcept;
Signal *sysv_signal() noexcept;
Signal *sigset() noexcept;
Sigignore *sigignore() noexcept;
Siginterrupt *siginterrupt() noexcept;

}  // namespace curb::shim::real
