// The contexts of this process: what each is charged for itself and for its stack, given back when it goes.
//
// A context's cost is told by no argument: that of the first one on a device is measured, the others cost the same
// (measured on an H200). Its stack is the local memory of every thread that can be resident, taken at once when the
// limit rises and given back when it falls. Thread-safe; no lock is held while the driver is called.
#pragma once

#include "devices.hpp"

namespace curb::shim::contexts {

// A new context, for which `cost` has been charged (0: nothing was). False: it is known already, by another thread that
// made the same primary context, and this charge is one too many.
bool made(CUcontext context, Device &device, Bytes cost) noexcept;
// The context is gone: gives back what was charged for it. False: it was not known.
bool gone(CUcontext context) noexcept;

// What more a limit of `limit` bytes a thread takes in this context than it has now; 0: nothing, or it is not known.
// `now`: its limit, which is taken for that of the beginning when the context is seen here for the first time.
Bytes stack_growth(CUcontext context, Bytes limit, Bytes now) noexcept;
// That is its limit from here on: charges it, or gives back. Below the limit of the beginning a part of what the
// context itself cost has come back.
void stack_set(CUcontext context, Bytes limit) noexcept;

// A context of its own for some of the multiprocessors (a green one): what is allocated there belongs to the device's
// primary context.
void note_green(CUcontext context) noexcept;
bool is_green(CUcontext context) noexcept;

}  // namespace curb::shim::contexts

namespace curb::shim {

// The context that memory allocated now in this thread goes away with.
CUcontext owner_of_memory() noexcept;

}  // namespace curb::shim
