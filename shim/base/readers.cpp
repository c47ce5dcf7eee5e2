#include "readers.hpp"

#include <linux/membarrier.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <mutex>
#include <new>

#include "keep_errno.hpp"

namespace curb::shim::readers {

constinit thread_local Reader *detail::mine = nullptr;

namespace {

// All that there ever were: those of threads that have ended are taken again. Leaked: threads read until the process is
// gone.
constinit Reader *first = nullptr;
constinit std::mutex mutex;
constinit bool has_key = false;
constinit pthread_key_t key{};

// A reader that could not be made, for want of host memory: what it reads is unknown, so nothing is freed any more.
constinit Reader unknown;
constinit std::atomic<bool> some_unknown{false};

// At the end of a thread. Another destructor may use CUDA later: then the thread enlists again.
void thread_ends(void *reader) noexcept {
    detail::mine = nullptr;
    static_cast<Reader *>(reader)->reading.store(0, std::memory_order_release);
    static_cast<Reader *>(reader)->used.store(false, std::memory_order_release);
}

Reader *unused_or_new() noexcept {
    for (Reader *one = first; one; one = one->next)
        if (!one->used.load(std::memory_order_acquire)) {
            one->used.store(true, std::memory_order_relaxed);
            return one;
        }
    auto *made = new (std::nothrow) Reader;
    if (!made) return nullptr;
    made->next = first;
    first = made;
    return made;
}

bool barrier(int command) noexcept { return syscall(SYS_membarrier, command, 0, 0) == 0; }

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

bool Grace::begin() noexcept {
    const KeepErrno keep_errno;
    static bool registered = false;
    if (!registered) registered = barrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
    if (!registered || !barrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED)) return false;
    const std::scoped_lock lock(mutex);
    for (Reader *one = first; one; one = one->next) one->seen_idle = false;
    return true;
}

bool Grace::is_over() noexcept {
    const std::scoped_lock lock(mutex);
    bool all = !some_unknown.load(std::memory_order_seq_cst);
    for (Reader *one = first; one; one = one->next) {
        one->seen_idle = one->seen_idle || one->reading.load(std::memory_order_acquire) == 0;
        all = all && one->seen_idle;
    }
    return all;
}

}  // namespace curb::shim::readers
