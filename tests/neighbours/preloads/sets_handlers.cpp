// A preload that stands in front of sigaction and signal, and counts their calls.

#include <atomic>
#include <csignal>

#include "preload.hpp"

namespace {
constinit std::atomic<unsigned long> calls{0};
}

EXPORT int sigaction(int number, const struct sigaction *action, struct sigaction *before) noexcept {
    static constinit std::atomic<decltype(&sigaction)> known{nullptr};
    calls.fetch_add(1, std::memory_order_relaxed);
    return next(known, "sigaction")(number, action, before);
}
EXPORT sighandler_t signal(int number, sighandler_t handler) noexcept {
    static constinit std::atomic<decltype(&signal)> known{nullptr};
    calls.fetch_add(1, std::memory_order_relaxed);
    return next(known, "signal")(number, handler);
}

__attribute__((destructor)) static void at_end() { mark("handlers", calls); }
