// What curb says about requests and books, in the log, to whoever asks from outside, and in the trace: refusals with
// their figures and remedies, waits, growth.
//
// Thread-safe; every function leaves errno.
#pragma once

#include <string>

#include "control/messages.hpp"
#include "devices.hpp"
#include "in_force.hpp"
#include "policy/obstacle.hpp"
#include "wait_queue.hpp"

namespace curb::shim::reports {

// What a request of so many bytes has met.
struct Met {
    Kind kind{};  // of memory
    policy::Obstacle why{};
    Bytes held = 0;  // of the device at that moment
    Bytes kept = 0;  // for the driver's code: neither held nor granted
};

// That a request was refused, or more code (0 bytes), by which limit and what to do about it. The first time it is a
// warning, then a line at level info. It is counted, too (refusals.hpp). Not so sizes that no device has, by which
// programs probe for free memory: no policy could serve them, and there is nothing to act on in that.
void refusal(Device &device, const Snapshot::Gpu &gpu, Bytes bytes, const Met &met) noexcept;
// The same of a context that alone takes more than the cap.
void context_refused(Device &device, Bytes cost) noexcept;
// That the driver had no memory, which the program is told as the driver says it: counted and traced alone.
void device_full(Device &device, Kind kind, Bytes bytes) noexcept;
// That a request was refused once for the caller to give back what it caches and to ask again: traced alone.
void pressed(Device &device, const Snapshot::Gpu &gpu, Bytes bytes, const Met &met) noexcept;

// At level info: that a request is held for room; that it was granted; what an allowance has become ("cuda:0 falls back
// to 2 GiB").
void waiting(Device &device, const Snapshot::Gpu &gpu, Bytes bytes, const Met &met) noexcept;
// That a request has waited for a second, and for what. The first time it is a warning, then a line at level info.
void waits_long(Device &device, const Snapshot::Gpu &gpu, Bytes bytes, const Met &met,
                const wait_queue::Wait &wait) noexcept;
void waited(const Device &device, Kind kind, Bytes bytes, const wait_queue::Wait &wait) noexcept;
void allowance(const Device &device, const char *how, Bytes bytes) noexcept;

// What became of caps that were set from outside: "curb cap: cuda:0 cap 8 GiB -> 6 GiB". May throw std::bad_alloc.
std::string cap_text(const control::CapReport &report);

// What the device holds and for what, how much of the allocations is kept for reuse, and the device's own figure, in
// bytes: the line for the log.
std::string books_text(Device &device);

}  // namespace curb::shim::reports
