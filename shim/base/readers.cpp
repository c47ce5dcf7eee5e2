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

struct All {
    std::mutex mutex;
    // Every record ever made. New threads reuse the records of threads that have ended. Never freed.
    Reader *first = nullptr;
    bool has_key = false;
    pthread_key_t key{};
    // Shared by threads that got no record (no host memory). Their reads are unknown, so no grace period ends any more.
    Reader unknown;
    bool some_unknown = false;
    std::atomic<bool> uses_barrier{false};  // the kernel knows of it
};
constinit All all;

// Runs at thread exit. If a later destructor uses CUDA, the thread enlists again.
void thread_ends(void *reader) noexcept {
    detail::mine = nullptr;
    static_cast<Reader *>(reader)->reading = 0;
    static_cast<Reader *>(reader)->driver_call = nullptr;
    static_cast<Reader *>(reader)->used = false;  // without the lock, which a fork child may find held
}

Reader *unused_or_new() noexcept {
    for (Reader *reader = all.first; reader; reader = reader->next)
        if (!reader->used) {
            reader->used = true;
            return reader;
        }
    auto *made = new (std::nothrow) Reader;
    if (!made) return nullptr;
    made->next = all.first;
    all.first = made;
    return made;
}

bool membarrier(int command) noexcept { return syscall(SYS_membarrier, command, 0, 0) == 0; }

}  // namespace

Reader &detail::enlist() noexcept {
    const KeepErrno keep_errno;
    const std::scoped_lock lock(all.mutex);
    if (!all.has_key) all.has_key = pthread_key_create(&all.key, thread_ends) == 0;
    Reader *reader = all.has_key ? unused_or_new() : nullptr;
    if (!reader || pthread_setspecific(all.key, reader) != 0) {
        if (reader) reader->used = false;
        all.some_unknown = true;
        return all.unknown;
    }
    return *(detail::mine = reader);
}

bool barrier() noexcept {
    const KeepErrno keep_errno;
    if (!all.uses_barrier) all.uses_barrier = membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
    return membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
}

const void *driver_call() noexcept {
    const std::scoped_lock lock(all.mutex);
    // A thread without a record may be in a call.
    if (all.some_unknown) return &all.unknown;
    for (Reader *reader = all.first; reader; reader = reader->next)
        if (const void *call = reader->driver_call) return call;
    return nullptr;
}

bool Grace::begin() noexcept {
    if (!barrier()) return false;
    const std::scoped_lock lock(all.mutex);
    for (Reader *reader = all.first; reader; reader = reader->next) reader->seen_idle = false;
    return true;
}

bool Grace::is_over() noexcept {
    const std::scoped_lock lock(all.mutex);
    bool is_over = !all.some_unknown;
    for (Reader *reader = all.first; reader; reader = reader->next) {
        reader->seen_idle = reader->seen_idle || reader->reading == 0;
        is_over = is_over && reader->seen_idle;
    }
    return is_over;
}

}  // namespace curb::shim::readers
