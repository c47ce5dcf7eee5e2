// A preload that defines dlsym, as tracers and other shims do, and forwards to the one behind it, which it finds by
// dlvsym and RTLD_NEXT. By a tail call: else RTLD_NEXT of others would mean what is behind this library.
#include <dlfcn.h>

#include <atomic>

#include "mark.hpp"

namespace {

using Dlsym = void *(void *, const char *);
constinit std::atomic<unsigned long> calls{0};
constinit std::atomic<Dlsym *> next{nullptr};

}  // namespace

EXPORT void *dlsym(void *handle, const char *name) noexcept {
    calls.fetch_add(1, std::memory_order_relaxed);
    if (!next)
        for (const char *version : {"GLIBC_2.2.5", "GLIBC_2.34", "GLIBC_2.17"})
            if (!next) next = reinterpret_cast<Dlsym *>(dlvsym(RTLD_NEXT, "dlsym", version));
    return next.load()(handle, name);
}

__attribute__((destructor)) static void at_end() { mark("dlsym_by_next", calls); }
