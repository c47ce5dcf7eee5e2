// A preload that defines dlsym and dlvsym and forwards to libc's own, which it finds in libc's symbol table: it
// bypasses every library behind it.
#include <dlfcn.h>

#include <atomic>

#include "../../bench/probe/symbols.hpp"
#include "preload.hpp"

namespace {

constinit std::atomic<unsigned long> calls{0};

template <class F>
F *libcs(std::atomic<F *> &known, const char *name) {
    if (!known) known = reinterpret_cast<F *>(own_symbol("libc.so.6", name));
    return known;
}

using Dlvsym = void *(void *, const char *, const char *) noexcept;
constinit std::atomic<Dlsym *> real_dlsym{nullptr};
constinit std::atomic<Dlvsym *> real_dlvsym{nullptr};

}  // namespace

EXPORT void *dlsym(void *handle, const char *name) noexcept {
    calls.fetch_add(1, std::memory_order_relaxed);
    return libcs(real_dlsym, "dlsym")(handle, name);
}
EXPORT void *dlvsym(void *handle, const char *name, const char *version) noexcept {
    calls.fetch_add(1, std::memory_order_relaxed);
    return libcs(real_dlvsym, "dlvsym")(handle, name, version);
}

__attribute__((destructor)) static void at_end() { mark("dlsym_of_libc", calls); }
