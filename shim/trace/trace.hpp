// Records memory events of this process while the policy names a trace file (trace.file).
//
// Each function is one event of control/trace_events.def. Call it right after the ledger has changed. Without a trace
// it costs one load. With one, it puts a record into a ring (ring.hpp), and the thread curb-trace writes the lines
// (writer.hpp). An event does not wait, take a lock or touch a file. Only events with text or a stack allocate; a stack
// may also take the loader's lock. Thread-safe. Keeps errno.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "control/release_report.hpp"
#include "control/status.hpp"
#include "device/devices.hpp"
#include "host/clock.hpp"
#include "policy/decisions/limit.hpp"
#include "trace/recording.hpp"

namespace curb::shim::trace {

namespace detail {
void allocated(const Device &device, Kind kind, std::uint64_t pointer, Bytes bytes, Bytes charge, bool reused) noexcept;
void freed(const Device &device, Kind kind, std::uint64_t pointer, Bytes bytes, Bytes credit, std::uint64_t at,
           bool reused) noexcept;
void freed_to_pool(std::uint64_t pointer) noexcept;
void books(const Device &device, Kind kind, std::int64_t change) noexcept;
void allowance(const Device &device, Bytes bytes) noexcept;
}  // namespace detail

// Returns the time; 0 if there is no trace. Call it before the driver frees memory: afterwards another thread may get
// the same address, and its allocation must have the later time.
inline std::uint64_t moment() noexcept { return on() ? now_ns() : 0; }

// The program allocated `bytes`, for which the device is charged `charge` more. `pointer`: the address or handle; 0 if
// none. `reused`: a kept block served the request.
inline void allocated(const Device &device, Kind kind, std::uint64_t pointer, Bytes bytes, Bytes charge,
                      bool reused = false) noexcept {
    if (on()) detail::allocated(device, kind, pointer, bytes, charge, reused);
}
// The program freed it, or its context ended, and the device was credited `credit`. `at`: moment() before the driver
// call. `reused`: curb keeps the block for reuse.
inline void freed(const Device &device, Kind kind, std::uint64_t pointer, Bytes bytes, Bytes credit, std::uint64_t at,
                  bool reused = false) noexcept {
    if (on()) detail::freed(device, kind, pointer, bytes, credit, at, reused);
}
// The program is about to free a pool's pointer, which has no record of its own and does not change the pool's charge.
// The writer adds the size from the record of its allocation.
inline void freed_to_pool(std::uint64_t pointer) noexcept {
    if (on()) detail::freed_to_pool(pointer);
}
// The bytes held of this kind have changed by `change` without a request of the program.
inline void books(const Device &device, Kind kind, std::int64_t change) noexcept {
    if (on() && change != 0) detail::books(device, kind, change);
}

// The driver will take `bytes` for the heap of kernels, beyond its default.
void heap(const Device &device, Bytes bytes) noexcept;

// The limit that a request exceeded; `limit` 0 if it is not one of the policy.
struct LimitHit {
    policy::Limit why{};
    Bytes limit = 0;
};
void refused(const Device &device, Kind kind, Bytes bytes, LimitHit hit) noexcept;
void waiting(const Device &device, Kind kind, Bytes bytes, LimitHit hit) noexcept;
void granted(const Device &device, Kind kind, Bytes bytes, std::uint64_t waited_ms) noexcept;
// The allowance is now `bytes`; policy::kUnbounded if there is none.
inline void allowance(const Device &device, Bytes bytes) noexcept {
    if (on()) detail::allowance(device, bytes);
}
// A step of a release has ended.
void step(const control::StepReport &step, const std::string &trigger) noexcept;
// A new policy is in force. `text`: its file and rule.
void policy(const Device &device, std::optional<Bytes> cap, Bytes allowance, const std::string &text) noexcept;

// The process has left its GPUs, or is back in them. `how`: as in control/trace.hpp. back() is async-signal-safe.
void out(Bytes bytes, const char *how, std::uint64_t took_ms = 0) noexcept;
void back(Bytes bytes, std::uint64_t took_ms) noexcept;

// Applies the policy's trace setting: begins a trace, ends it, or changes its file. Restarts a trace that an error
// ended. One thread at a time.
void apply(const policy::TracePolicy &policy, const std::string &command) noexcept;
// Returns the trace's status; nullopt if the policy names no file.
std::optional<control::TraceStatus> status();
// Logs the error that stopped the trace, once. Not for curb-trace, which has no descriptor to log to.
void log_error() noexcept;

// Stops recording in a fork child; the parent continues. Async-signal-safe.
void in_fork_child() noexcept;

}  // namespace curb::shim::trace
