// The gate: while it is closed, no call of the program reaches the driver. The calls wait, and continue when it opens.
//
// It is closed while the process is out of its GPUs. The driver's own lock blocks most functions then, but not all: a
// synchronisation or a query ends the program by SIGSEGV (measured on an H200: docs/results/driver.md). And curb's own
// move takes no lock of the driver's, while a copy of pageable memory uses the GPU's memory until it returns. These
// functions are the CURB_COUNT rows of entry_points.def. If one is running when the gate closes, it must return before
// the process may be moved. So curb counts these calls, each thread in a record of its own. Of a program that leaves
// its GPUs while it is busy (suspend.turn) it counts all calls.
//
// An open gate costs a call one load. Thread-safe.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>

#include "base/lifetime.hpp"
#include "base/readers.hpp"
#include "policy/values/size.hpp"

// 0: calls pass. Read by the thunks' assembly too.
extern "C" __attribute__((visibility("hidden"))) std::atomic<std::uint32_t> curb_gate;

namespace curb::shim::gate {

// Bits of curb_gate.
inline constexpr std::uint32_t kClosed = 1;
inline constexpr std::uint32_t kNoDriver = 2;  // libcuda has not been found yet
inline constexpr std::uint32_t kWatched = 4;   // the program's next call clears this bit, and passes
inline constexpr std::uint32_t kCounts = 8;    // every call of the program is counted

inline bool is_closed() noexcept { return (curb_gate.load() & kClosed) != 0; }

// Waits while the gate is closed. False if the process is ending: the gate will not open again, and the call must
// return CUDA_ERROR_DEINITIALIZED. Keeps errno. No cancellation point.
bool wait() noexcept;

// For whom the gate is closed: a client that moves the process, or a nap.
enum class For : std::uint8_t { client, nap };
enum class Closing : std::uint8_t {
    closed,
    taken,      // it is closed for the other one, which is moving the process: ask again
    uncounted,  // the kernel has no membarrier, so calls cannot be counted; the gate stays open
};
// Closes the gate, or renews the lease if it is closed for the same one. If the lease is not renewed, and the driver
// says that the process is running, the next call of the program opens the gate: the client may have died. A client
// also takes over a gate whose lease is over; a nap begins only at an open gate. Not async-signal-safe.
Closing close(For whom, std::chrono::milliseconds lease) noexcept;
// Opens the gate if it is closed for this one. A client also opens a gate whose lease is over. `resumed_ms`: how long
// the client took to bring the process back. Not async-signal-safe.
void open(For whom, std::uint64_t resumed_ms = 0) noexcept;
// Opens the gate if its lease is over and the driver says that the process is running. Does not block.
void open_if_abandoned() noexcept;
// Returns the slot of a running function that must return before the process may be moved (name_of_slot). Null if there
// is none. Exact only while the gate is closed.
const void *call_under_way() noexcept;

// Returns when the first call of the program began to wait since the gate closed (now_ms()). 0 if none has.
std::uint64_t waiting_since() noexcept;
// Returns how long that call has waited, or did wait until the gate opened. nullopt if none has.
std::optional<std::uint64_t> waited_ms() noexcept;
// Has waiting_since() answer as if a call waited.
void note_waiting() noexcept;
// While it lives, calls of this thread of curb's that wait count as calls of the program: they end a nap.
class EndsNaps : NoCopy {
  public:
    EndsNaps() noexcept;
    ~EndsNaps();
};
// Sleeps until a call of the program waits, at most `milliseconds`. One thread at a time.
void sleep_until_called(std::uint64_t milliseconds) noexcept;

// Records that the process is out of its GPUs, moved by this one. When the gate opens, and before any call passes, curb
// calls `back` with the bytes and the milliseconds of the return: those that a call waited, or the client's. `back` may
// run in a signal handler, and takes no lock.
using Back = void (*)(policy::Bytes bytes, std::uint64_t took_ms) noexcept;
void note_out(For by, policy::Bytes bytes, Back back) noexcept;
// A client keeps the process out that a nap has moved.
void note_kept_out() noexcept;
// Calls `back` if the process is back and the gate has not called it.
void note_back() noexcept;

// True if the program has begun a call of the driver since the last take_called(). Only its next call pays for that.
bool take_called() noexcept;
// Records that a call has begun. Calls of curb's own threads do not count.
void note_call() noexcept;

// Call it when the process ends, or the driver has: waiting calls return.
void at_exit() noexcept;
bool has_ended() noexcept;
// Opens the gate in a fork child, where the driver refuses all calls.
void in_fork_child() noexcept;

// From now on every call of the program is counted. For the life of the process. `from_start`: no call that the gate
// waits for can be under way.
void count_all(bool from_start) noexcept;
inline bool counts_all() noexcept { return (curb_gate.load(std::memory_order_relaxed) & kCounts) != 0; }
// Returns when count_all() was first called (now_ms()). 0: it was not. A call that began before may be uncounted.
std::uint64_t counts_all_since() noexcept;

// Counts a call on this thread. Within another call that is counted, it passes: the process is not moved before the
// outer one returns, so that one must not wait for the gate.
class Crossing : NoCopy {
  public:
    // Waits while the gate is closed. `function`: the slot.
    explicit Crossing(const void *function) noexcept : reader_(readers::mine()) {
        if (reader_.driver_call.load(std::memory_order_relaxed)) return;
        is_outermost_ = true;
        for (mark(function); is_closed(); mark(function)) {
            leave();
            passes_ = wait();
            if (!passes_) return;
        }
    }
    ~Crossing() {
        if (is_outermost_) leave();
    }

    [[nodiscard]] bool passes() const noexcept { return passes_; }

  private:
    void mark(const void *function) noexcept {
        reader_.driver_call.store(function, std::memory_order_relaxed);
        // This fence orders the compiler; the closing thread's membarrier orders the processors.
        std::atomic_signal_fence(std::memory_order_seq_cst);
    }
    void leave() noexcept { reader_.driver_call.store(nullptr, std::memory_order_release); }

    readers::Reader &reader_;
    bool is_outermost_ = false, passes_ = true;
};

// The same without an object, for thunks. A thread that ends in such a call is not counted any more. One that leaves it
// by longjmp is, and then the process stays on its GPUs.
enum class Passing : std::uint8_t {
    ended,      // the process is ending: no call
    uncounted,  // it is within another call, or of a thread of curb's
    counted,    // end_call() must follow
};
Passing begin_call(const void *function) noexcept;
void end_call() noexcept;

}  // namespace curb::shim::gate
