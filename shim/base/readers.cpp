#include "base/readers.hpp"

#include <linux/membarrier.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <mutex>
#include <new>

#include "base/keep_errno.hpp"

namespace curb::shim::readers {

constinit thread_local Reader *detail::mine = nullptr;

namespace {

// Every record ever made. New threads reuse the records of threads that have ended. Never freed.
constinit Reader *first = nullptr;
constinit std::mutex mutex;
constinit bool has_key = false;
constinit pthread_key_t key{};

// Shared by threads that got no record (no host memory). Their reads are unknown, so no grace period ends any more.
constinit Reader unknown;
constinit std::atomic<bool> some_unknown{false};

// Runs at thread exit. If a later destructor uses CUDA, the thread enlists again.
void thread_ends(void *reader) noexcept {
    detail::mine = nullptr;
    static_cast<Reader *>(reader)->reading.store(0, std::memory_order_release);
    static_cast<Reader *>(reader)->driver_call.store(nullptr, std::memory_order_release);
    static_cast<Reader *>(reader)->used.store(false, std::memory_order_release);
}

Reader *unused_or_new() noexcept {
    for (Reader *reader = first; reader; reader = reader->next)
        if (!reader->used.load(std::memory_order_acquire)) {
            reader->used.store(true, std::memory_order_relaxed);
            return reader;
        }
    auto *made = new (std::nothrow) Reader;
    if (!made) return nullptr;
    made->next = first;
    made->number = static_cast<std::uint16_t>(first ? first->number + 1 : 0);
    first = made;
    return made;
}

bool membarrier(int command) noexcept { return syscall(SYS_membarrier, command, 0, 0) == 0; }

}  // namespace

Reader &detail::enlist() noexcept {
    const KeepErrno keep_errno;
    const std::scoped_lock lock(mutex);
    if (!has_key) has_key = pthread_key_create(&key, thread_ends) == 0;
    Reader *reader = has_key ? unused_or_new() : nullptr;
    if (!reader || pthread_setspecific(key, reader) != 0) {
        if (reader) reader->used.store(false, std::memory_order_release);
        some_unknown.store(true, std::memory_order_seq_cst);
        return unknown;
    }
    return *(detail::mine = reader);
}

bool barrier() noexcept {
    const KeepErrno keep_errno;
    static constinit std::atomic<bool> registered{false};
    if (!registered.load(std::memory_order_relaxed))
        registered.store(membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED), std::memory_order_relaxed);
    return membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
}

const void *driver_call() noexcept {
    const std::scoped_lock lock(mutex);
    // A thread without a record may be in a call.
    if (some_unknown.load(std::memory_order_seq_cst)) return &unknown;
    for (Reader *reader = first; reader; reader = reader->next)
        if (const void *call = reader->driver_call.load(std::memory_order_acquire)) return call;
    return nullptr;
}

bool Grace::begin() noexcept {
    if (!barrier()) return false;
    const std::scoped_lock lock(mutex);
    for (Reader *reader = first; reader; reader = reader->next) reader->seen_idle = false;
    return true;
}

bool Grace::is_over() noexcept {
    const std::scoped_lock lock(mutex);
    bool all = !some_unknown.load(std::memory_order_seq_cst);
    for (Reader *reader = first; reader; reader = reader->next) {
        reader->seen_idle = reader->seen_idle || reader->reading.load(std::memory_order_acquire) == 0;
        all = all && reader->seen_idle;
    }
    return all;
}

}  // namespace curb::shim::readers
