// For hooks whose driver calls and records belong together: the process is not moved between them.
#pragma once

#include "driver/driver.hpp"

namespace curb::shim {

// Calls `act`, which calls the driver by driver_behind_gate(), as one call of `Function` under way. Waits first while
// the gate is closed.
template <auto Function, class Act>
CUresult as_one_call(Act act) {
    driver();  // notes the call, which the gate may wait for
    const gate::Crossing crossing(&(detail::the_driver.*Function));
    return crossing.passes() ? act(driver_behind_gate()) : CUDA_ERROR_DEINITIALIZED;
}

}  // namespace curb::shim
