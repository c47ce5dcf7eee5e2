// Tracks which threads read a snapshot, so that a replaced snapshot can be freed, and which are inside a call that must
// return before the process may be moved (gate.hpp). Each thread marks its own record, without a fence or a locked
// instruction. The thread that waits for the others calls membarrier(2) instead (docs/decisions/0024).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace curb::shim::readers {

struct Reader {
    std::atomic<std::uint32_t> reading{0};  // 1: the thread uses a snapshot
    std::atomic<bool> used{true};           // by a live thread
    bool seen_idle = false;                 // during this grace period; only the freeing thread uses it
    Reader *next = nullptr;
    std::atomic<const void *> driver_call{nullptr};  // the function that the thread is in
    std::byte padding[96]{};                         // keeps other threads' data off this cache line

    // Uses nest: pass the returned value to leave().
    std::uint32_t enter() noexcept {
        const std::uint32_t before = reading.load(std::memory_order_relaxed);
        reading.store(1, std::memory_order_relaxed);
        // This fence orders the compiler; the freeing thread's membarrier orders the processors.
        std::atomic_signal_fence(std::memory_order_seq_cst);
        return before;
    }
    void leave(std::uint32_t before) noexcept { reading.store(before, std::memory_order_release); }
};

namespace detail {
[[gnu::tls_model("initial-exec")]] extern constinit thread_local Reader *mine;
// Makes the calling thread's record, at its first use.
Reader &enlist() noexcept;
}  // namespace detail

// Returns the calling thread's record. The thread's first call takes a lock and allocates.
inline Reader &mine() noexcept {
    Reader *reader = detail::mine;
    return reader ? *reader : detail::enlist();
}

// Makes every thread's marks visible to this one. False if the kernel has no membarrier.
bool barrier() noexcept;

// Returns the `driver_call` of one thread that is in such a call. Null if no thread is. If some thread got no record
// (no host memory), always returns a pointer, because that thread may be in a call. Call barrier() before, so that
// every thread's mark is visible. Takes a lock.
const void *driver_call() noexcept;

// A grace period: it lasts until every thread has been seen without a snapshot. After that, no thread uses a snapshot
// that was replaced before it began. One thread at a time.
class Grace {
  public:
    // False if the kernel has no membarrier; then no snapshot can ever be freed.
    static bool begin() noexcept;
    // Checks every thread once and does not wait. If false, call it again later.
    static bool is_over() noexcept;
};

}  // namespace curb::shim::readers
