// CUDA arrays: which there are and what each is charged. Thread-safe; no lock is held while the driver is called.
#pragma once

#include <optional>

#include "devices.hpp"

namespace curb::shim::arrays {

struct Array {
    Device *device = nullptr;
    CUcontext context = nullptr;  // destroying it frees the memory
    Bytes bytes = 0;              // charged
    Bytes least = 0;              // of its elements
};

// False: no host memory for the record, and the array must be destroyed again.
bool add(const void *handle, const Array &array) noexcept;
// Forgets the array before the driver destroys it. None: not known.
std::optional<Array> forget(const void *handle) noexcept;
// The driver has destroyed it: credits the device. `moment`: trace::moment() before that.
void credit(const void *handle, const Array &array, std::uint64_t moment) noexcept;
// The context is gone, and its arrays with it.
void drop_context(CUcontext context) noexcept;

}  // namespace curb::shim::arrays
