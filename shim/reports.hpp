// What curb says about requests and books: refusals with their figures and remedies, waits, growth.
//
// Thread-safe; every function leaves errno.
#pragma once

#include <string>

#include "devices.hpp"
#include "process.hpp"
#include "room.hpp"

namespace curb::shim::reports {

// That a request was refused, or more code (0 bytes), by which limit and what to do about it. The first time it is a
// warning, then a line at level info.
void refusal(Device &device, Bytes bytes) noexcept;
// The same of a context that alone takes more than the cap.
void context_refused(Device &device, Bytes cost) noexcept;

// At level info: that a request is held for room; that it was granted; what an allowance has become ("cuda:0 falls back
// to 2 GiB").
void waiting(const Device &device, const Snapshot::Gpu &gpu, Bytes bytes) noexcept;
void waited(const Device &device, Bytes bytes, const room::Wait &wait) noexcept;
void allowance(const Device &device, const char *how, Bytes bytes) noexcept;

// What the device holds and for what, how much of the allocations is kept for reuse, and the device's own figure, in
// bytes: the line for the log.
std::string books_text(Device &device);

}  // namespace curb::shim::reports
