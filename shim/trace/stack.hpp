// Records who allocated: the call stacks of large allocations, for a trace whose policy has `trace.stacks`.
//
// The allocating thread walks its stack with the process's unwinder and records the addresses; the thread curb-trace
// looks up their names. No Python frames: docs/decisions/0025.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace curb::shim::trace::stack {

// True if a stack may be taken now, and counts it: 256 at once, then one a millisecond. Thread-safe. Takes no lock.
bool may_take(std::uint64_t now_ns) noexcept;

// Returns the addresses of this thread's calls, the innermost first, 8 bytes each. May throw std::bad_alloc.
std::string take();

// Returns the calls by name, without curb's own: "at::empty+0x1f (libtorch_cuda.so) < main+0x20 (train)". A call in a
// function that its library does not export is "libtorch_cuda.so+0x1f20". May throw std::bad_alloc.
std::string names_of(std::string_view addresses);

}  // namespace curb::shim::trace::stack
