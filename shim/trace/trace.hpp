// The trace: what becomes of this process's memory, recorded while the policy names a file for it (trace.file).
//
// Each function here is one event of control/trace_events.def, called where the books have just changed. While there is
// no trace it costs one load. While there is one, the program's thread writes a plain record into a ring
// (trace/ring.hpp) and goes on; a thread of our own, curb-trace, makes lines of the records (trace/writer.hpp). Nothing
// here waits, takes a lock, allocates or touches a file, but for the rare events that carry text. Thread-safe; leaves
// errno.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "control/release_report.hpp"
#include "control/status.hpp"
#include "devices.hpp"
#include "policy/obstacle.hpp"

namespace curb::shim::trace {

namespace detail {
extern constinit std::atomic<bool> recording;
std::uint64_t now_ns() noexcept;
void allocated(const Device &device, Kind kind, std::uint64_t pointer, Bytes bytes, Bytes charge, bool reused) noexcept;
void freed(const Device &device, Kind kind, std::uint64_t pointer, Bytes bytes, Bytes credit, std::uint64_t at,
           bool reused) noexcept;
void freed_to_pool(std::uint64_t pointer) noexcept;
void books(const Device &device, Kind kind, std::int64_t change) noexcept;
// For the writer, where events are missing: what is held of this kind. False: there is no place for it now.
bool say_held(const Device &device, Kind kind) noexcept;
void allowance(const Device &device, Bytes bytes) noexcept;
}  // namespace detail

inline bool on() noexcept { return detail::recording.load(std::memory_order_relaxed); }

// Before a call of the driver that frees: afterwards another thread may be given the same address, and its allocation
// must not seem to be the older one. 0 while there is no trace.
inline std::uint64_t moment() noexcept { return on() ? detail::now_ns() : 0; }

// Memory was given to the program, which asked for `bytes`; the device is charged `charge` more for it. `pointer`: the
// address or handle; 0: there is none. `reused`: it is a block that curb had kept.
inline void allocated(const Device &device, Kind kind, std::uint64_t pointer, Bytes bytes, Bytes charge,
                      bool reused = false) noexcept {
    if (on()) detail::allocated(device, kind, pointer, bytes, charge, reused);
}
// The program freed it, or it went with its context; the device was credited `credit`. `at`: moment() before the
// driver was called. `reused`: curb keeps the block.
inline void freed(const Device &device, Kind kind, std::uint64_t pointer, Bytes bytes, Bytes credit, std::uint64_t at,
                  bool reused = false) noexcept {
    if (on()) detail::freed(device, kind, pointer, bytes, credit, at, reused);
}
// The program is about to free a pointer that the books do not know: a pool's, whose charge stays as it is. What it was
// the writer knows, who has seen it being allocated.
inline void freed_to_pool(std::uint64_t pointer) noexcept {
    if (on()) detail::freed_to_pool(pointer);
}
// What is held of this kind has changed by so much, without a request of the program's.
inline void books(const Device &device, Kind kind, std::int64_t change) noexcept {
    if (on() && change != 0) detail::books(device, kind, change);
}

// A request that was not granted, and the limit that it met (0: none of the policy's).
struct Met {
    policy::Obstacle why{};
    Bytes limit = 0;
};
void refused(const Device &device, Kind kind, Bytes bytes, Met met) noexcept;
void waiting(const Device &device, Kind kind, Bytes bytes, Met met) noexcept;
void granted(const Device &device, Kind kind, Bytes bytes, std::uint64_t waited_ms) noexcept;
// What the allowance has become; policy::kUnbounded: there is none.
inline void allowance(const Device &device, Bytes bytes) noexcept {
    if (on()) detail::allowance(device, bytes);
}
// A step of a release has just ended.
void step(const control::StepReport &step, const std::string &trigger) noexcept;
// A policy is in force from here on. `text`: its file and rule.
void policy(const Device &device, std::optional<Bytes> cap, Bytes allowance, const std::string &text) noexcept;

// What the policy in force says of the trace: begins one, ends it, or goes on in another file. One that has come to its
// end by some trouble is begun again. Used by whoever puts a policy in force, one at a time.
void follow(const policy::TracePolicy &policy, const std::string &command) noexcept;
// None: the policy names no file.
std::optional<control::TraceStatus> status();
// Logs why nothing is written any more, once. Not on curb-trace, which has no descriptor to log to.
void log_error() noexcept;

// In a fork child, whose parent goes on writing. Async-signal-safe.
void in_fork_child() noexcept;

}  // namespace curb::shim::trace
