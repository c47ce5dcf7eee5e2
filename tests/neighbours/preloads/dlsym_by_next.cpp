// A preload that defines dlsym, as tracers and other shims do, and forwards to the next one, which it finds by dlvsym
// and RTLD_NEXT. It forwards by a tail call: otherwise a caller's RTLD_NEXT would mean the libraries behind this one.
#include <dlfcn.h>

#include <atomic>

#include "preload.hpp"

namespace {

constinit std::atomic<unsigned long> calls{0};

}  // namespace

EXPORT void *dlsym(void *handle, const char *name) noexcept {
    calls.fetch_add(1, std::memory_order_relaxed);
    return next_dlsym()(handle, name);
}

__attribute__((destructor)) static void at_end() { mark("dlsym_by_next", calls); }
