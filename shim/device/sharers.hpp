// The other processes that take turns on a device (suspend.turn), by the board. Thread-safe.
#pragma once

#include <vector>

#include "control/ticket.hpp"
#include "device/devices.hpp"
#include "policy/decisions/turns.hpp"

namespace curb::shim::sharers {

// Returns those of them that have memory which leaves for others. `but`: the process to leave out; null: none. May
// throw std::bad_alloc.
std::vector<policy::turns::Runner> others(const Device &device, const control::Ticket::Lacking *but = nullptr);
// Returns how much of the device all of them together take out for others. Reads the board at most every 0.5 s.
Bytes can_leave(const Device &device) noexcept;

}  // namespace curb::shim::sharers
