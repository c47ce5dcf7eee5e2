// Helpers of the preloads.
#pragma once

#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>

#define EXPORT extern "C" __attribute__((visibility("default")))

// Returns the function of that name behind this preload.
template <class F>
F *next(std::atomic<F *> &known, const char *name) {
    if (!known) known = reinterpret_cast<F *>(dlsym(RTLD_NEXT, name));
    return known;
}

// Returns the next dlsym, for preloads that define dlsym and leave by a tail call. A function that may throw, or a list
// on the caller's stack, would prevent the tail call: hence noexcept and noinline.
using Dlsym = void *(void *, const char *) noexcept;
[[gnu::noinline]] inline Dlsym *next_dlsym() noexcept {
    static constinit std::atomic<Dlsym *> known{nullptr};
    for (const char *version : {"GLIBC_2.2.5", "GLIBC_2.34", "GLIBC_2.17"})
        if (!known) known = reinterpret_cast<Dlsym *>(dlvsym(RTLD_NEXT, "dlsym", version));
    return known;
}

// Adds a line to the file that NEIGHBOUR_MARK names. Called when the process ends, as proof that the preload was in
// effect.
inline void mark(const char *what, unsigned long count) {
    const char *file = std::getenv("NEIGHBOUR_MARK");
    const int fd = file ? open(file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
    if (fd < 0) return;
    dprintf(fd, "%s %lu\n", what, count);
    close(fd);
}
