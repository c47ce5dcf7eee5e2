// Records CUDA arrays and the charge of each. Thread-safe. Holds no lock while calling the driver.
#pragma once

#include "base/table.hpp"
#include "device/devices.hpp"

namespace curb::shim::arrays {

struct Array {
    Device *device = nullptr;
    CUcontext context = nullptr;  // destroying it frees the memory
    Bytes bytes = 0;              // charged
    Bytes least = 0;              // bytes of its elements, without padding
};
using Arrays = Table<const void *, Array>;
using Removal = Arrays::Removal;

// False if host memory is exhausted: destroy the array again.
bool add(const void *handle, const Array &array) noexcept;
// Removes the record until the Removal ends; for a call that may destroy the array.
Removal remove(const void *handle) noexcept;
// Credits the device after the driver has destroyed the array. `moment`: trace::moment() before that call.
void credit(const void *handle, const Array &array, std::uint64_t moment) noexcept;
// Credits the arrays of a destroyed context.
void drop_context(CUcontext context) noexcept;

}  // namespace curb::shim::arrays
