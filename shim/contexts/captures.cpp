// A capture ends by cuStreamEndCapture on the stream in which it began, with that stream, or with its context. Streams
// forked into the capture do not end it, so each record names the stream in which it began.

#include "contexts/captures.hpp"

#include <pthread.h>

#include <atomic>
#include <mutex>

#include "base/lifetime.hpp"
#include "base/waiting.hpp"
#include "contexts/contexts.hpp"

namespace curb::shim::captures {
namespace {

struct Registry {
    std::mutex mutex;
    Origins origins;
    void (*on_last_end)() noexcept = []() noexcept {};
    BusyCount synchronising;  // not under the lock: threads of curb that are about to enter the driver
};
Registry &registry() noexcept { return leaked<Registry>(); }

// Returns the context that the stream ends with. The query breaks no capture (the contract suite tests it).
CUcontext owner_of(CUstream stream) noexcept {
    CUcontext context = nullptr;
    return ask_twice<&Driver::cuStreamGetCtx>(stream, &context) == CUDA_SUCCESS ? contexts::owner_of(context)
                                                                                : owner_of_memory();
}

bool same(const Origin &a, const Origin &b) noexcept {
    const bool is_default = a.stream == CU_STREAM_PER_THREAD;
    return a.stream == b.stream && (!is_default || (a.thread == b.thread && a.context == b.context));
}

auto on_last_end() noexcept {
    const std::scoped_lock lock(registry().mutex);
    return registry().on_last_end;
}

void ended(std::size_t captures) noexcept {
    if (captures != 0 && detail::in_progress.fetch_sub(captures) == captures) on_last_end()();
}

// Removes at most `most` matching records and returns them.
template <class Matches>
Origins taken(Matches matches, std::size_t most = ~std::size_t{0}) noexcept {
    Origins out;
    const std::scoped_lock lock(registry().mutex);
    for (auto one = registry().origins.begin(); one != registry().origins.end() && out.size() < most;) {
        const auto next = std::next(one);
        if (matches(*one)) out.splice(out.end(), registry().origins, one);
        one = next;
    }
    return out;
}

}  // namespace

void when_the_last_ends(void (*call)() noexcept) noexcept {
    const std::scoped_lock lock(registry().mutex);
    registry().on_last_end = call;
}

Origin origin_of(CUstream stream) noexcept {
    return stream == CU_STREAM_PER_THREAD ? Origin{stream, pthread_self(), owner_of_memory()} : Origin{stream, {}, {}};
}

bool beginning(Origin &origin) noexcept try {
    if (!origin.context) origin.context = owner_of(origin.stream);
    {
        const std::scoped_lock lock(registry().mutex);
        registry().origins.push_back(origin);
    }
    detail::in_progress.fetch_add(1);
    // A thread of curb that is about to enter the driver's synchronisation would break this capture, so wait for it. It
    // may be preempted there, for longer than 2 ms where cores are few. The wait is limited because a synchronisation
    // already inside the driver looks the same from here, and does no harm (measured on an H200).
    constexpr unsigned kMostMs = 50;
    registry().synchronising.wait(kMostMs);
    return true;
} catch (...) {
    return false;
}

void has_ended(const Origin &origin) noexcept {
    ended(taken([&](const Origin &one) { return same(one, origin); }, 1).size());
}

Destroying::Destroying(CUstream stream) noexcept
    : here_(taken([=](const Origin &one) { return one.stream == stream; })) {}

Destroying::~Destroying() {
    if (here_.empty()) return;
    const std::scoped_lock lock(registry().mutex);
    registry().origins.splice(registry().origins.end(), here_);
}

void Destroying::done() noexcept {
    ended(here_.size());
    here_.clear();
}

void drop_context(CUcontext context) noexcept {
    if (any()) ended(taken([=](const Origin &one) { return one.context == context; }).size());
}

std::optional<CUresult> synchronise_current_context() noexcept {
    const BusyCount::Guard guard(registry().synchronising);
    if (any()) return std::nullopt;
    Device *device = Ledger::has_returned_at_sync() ? devices::current() : nullptr;
    const Bytes mark = device ? device->ledger.sync_mark() : 0;
    const CUresult result = driver().cuCtxSynchronize();
    if (device && result == CUDA_SUCCESS) device->ledger.synchronised(mark);
    return result;
}

}  // namespace curb::shim::captures
