// A preload that stands in front of sigaction and signal, and counts.
#include <dlfcn.h>

#include <atomic>
#include <csignal>

#include "mark.hpp"

namespace {
constinit std::atomic<unsigned long> calls{0};
}

EXPORT int sigaction(int number, const struct sigaction *action, struct sigaction *before) noexcept {
    static constinit std::atomic<decltype(&sigaction)> next{nullptr};
    if (!next) next = reinterpret_cast<decltype(&sigaction)>(dlsym(RTLD_NEXT, "sigaction"));
    calls.fetch_add(1, std::memory_order_relaxed);
    return next.load()(number, action, before);
}
EXPORT sighandler_t signal(int number, sighandler_t handler) noexcept {
    static constinit std::atomic<decltype(&signal)> next{nullptr};
    if (!next) next = reinterpret_cast<decltype(&signal)>(dlsym(RTLD_NEXT, "signal"));
    calls.fetch_add(1, std::memory_order_relaxed);
    return next.load()(number, handler);
}

__attribute__((destructor)) static void at_end() { mark("handlers", calls); }
