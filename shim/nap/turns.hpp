// Turns (the policy's suspend.turn): a process that has had its GPUs for a turn leaves them while another one waits for
// memory there, also in the midst of its work. nap.hpp moves it; this says when. Thread-safe.
#pragma once

#include <cstdint>
#include <optional>

#include "control/board.hpp"
#include "control/ticket.hpp"
#include "device/devices.hpp"

namespace curb::shim::turns {

// What this process says of itself with a request. nullopt: it does not take turns.
std::optional<control::InTurns> in_turns(const Device &device) noexcept;
// What it posts of a device. Nothing if it does not take turns. May throw std::bad_alloc.
void post(const Device &device, control::board::Gpu &gpu);

// Call it often: it counts the seconds in which the process was `busy`. On the worker.
void sample(bool busy) noexcept;
// True if the process leaves its GPUs now. On the worker. Calls NVML and reads files only where others wait. May throw
// std::bad_alloc.
bool is_over();
// The process could not leave: it tries again a while later.
void note_refused() noexcept;
// Its memory has left at the end of a turn.
void note_out(std::uint64_t took_ms) noexcept;
// It is back, and a turn begins. `took_ms`: what note_out() was called for; nullopt: it was out for another reason.
void note_back(std::optional<std::uint64_t> took_ms) noexcept;

// nullopt if the policy has no turns.
std::optional<control::TurnStatus> status();

}  // namespace curb::shim::turns
