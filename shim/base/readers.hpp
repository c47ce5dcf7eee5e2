// Threads that read a snapshot, so that one that was replaced can be freed: each thread says so in a
// place of its own that no other thread writes. A reader executes no fence and no locked instruction;
// the thread that frees has the kernel make all of them pass a barrier instead (docs/decisions/0030).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace curb::shim::readers {

struct Reader {
    std::atomic<std::uint32_t> reading{0};  // 1: its thread has a snapshot in use
    std::atomic<bool> used{true};           // by a thread that lives
    bool seen_idle = false;                 // since the grace period began; of who frees
    Reader *next = nullptr;
    std::byte apart[104]{};  // from what other threads write

    // Returns what leave() restores, as uses are nested.
    std::uint32_t enter() noexcept {
        const std::uint32_t before = reading.load(std::memory_order_relaxed);
        reading.store(1, std::memory_order_relaxed);
        // The compiler keeps this order, and the barrier of who frees has every thread's processor keep it.
        std::atomic_signal_fence(std::memory_order_seq_cst);
        return before;
    }
    void leave(std::uint32_t before) noexcept { reading.store(before, std::memory_order_release); }
};

namespace detail {
[[gnu::tls_model("initial-exec")]] extern constinit thread_local Reader *mine;
// Of a thread's first use.
Reader &enlist() noexcept;
}  // namespace detail

inline Reader &mine() noexcept {
    Reader *reader = detail::mine;
    return reader ? *reader : detail::enlist();
}

// A grace period: from its beginning until every thread has been seen without a snapshot. What was replaced before it
// began is then in no thread's use. By one thread at a time.
class Grace {
  public:
    // False: the kernel makes no barrier, so nothing can ever be freed.
    static bool begin() noexcept;
    // Looks once; call it again later.
    static bool is_over() noexcept;
};

}  // namespace curb::shim::readers
