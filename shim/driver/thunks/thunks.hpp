// Thunks: the gate (gate.hpp) in front of the driver functions that curb does not wrap. Each is a few instructions that
// test the gate and jump to the function. The caller's arguments, return address and stack stay unchanged. With the
// gate closed or the slot empty, a thunk asks curb_thunk_target() (thunk_target.cpp) where to jump.
//
// Two kinds: one under each name of functions.def and of the CURB_PASS rows, for programs that are linked to the
// driver; and a supply without names, for functions that a look-up has found. Nothing is generated at run time.
// Thread-safe.
#pragma once

#include <atomic>
#include <string_view>

namespace curb::shim::thunks {

// Fills the slots of the exported thunks, once libcuda is found.
void fill() noexcept;

// Returns the exported thunk of exactly this name. Null if there is none.
void *named(const char *symbol) noexcept;

// Returns the thunk for a function of libcuda that a look-up of `name` has found. Returns the function itself if it
// works while the process is out of its GPUs, or if the supply of thunks is used up.
void *for_function(void *driver_address, const char *name) noexcept;

// The same for a function of NVML, whose calls wait in the driver while the process is out of its GPUs.
void *for_nvml(void *address, const char *name) noexcept;

// False once the supply was used up: then some calls bypass a closed gate.
bool all_gated() noexcept;
// Returns a thunk for a function that curb calls for the program, so that the call is counted.
void *counting(void *driver_address) noexcept;

// True for functions that work while the process is out of its GPUs: those that only read its own data, and those that
// move it.
bool answers_while_closed(std::string_view name) noexcept;

// Returns the name of the exported thunk with this slot. Null if the slot is of the supply.
const char *name_of(const std::atomic<void *> *slot) noexcept;

// Returns the name of libcuda's function at this address, if functions.def or a CURB_PASS row has it; else null.
const char *name_at(const void *driver_address) noexcept;

}  // namespace curb::shim::thunks
