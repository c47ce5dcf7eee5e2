// A preload that defines dlsym, as tracers and other shims do, and forwards to the one behind it, which it finds by
// dlvsym and RTLD_NEXT. By a tail call: else RTLD_NEXT of others would mean what is behind this library.
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
