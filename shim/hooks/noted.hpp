// For hooks of calls that pass, and whose success curb notes.
#pragma once

#include "driver/driver.hpp"
#include "host/process_state.hpp"

namespace curb::shim {

// Calls `note` if the driver's call has succeeded and curb is active. Returns the call's result.
template <class Note>
CUresult noted(CUresult result, Note note) noexcept {
    if (result == CUDA_SUCCESS && process::active()) note();
    return result;
}

}  // namespace curb::shim
