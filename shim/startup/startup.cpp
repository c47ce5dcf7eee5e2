// The hook of cuInit, which activates curb.

#include "activate.hpp"
#include "driver.hpp"

using namespace curb::shim;

CUresult cuInit(unsigned flags) {
    const CUresult result = driver().cuInit(flags);
    if (!driver_loaded()) return result;
    // Without host memory curb cannot read the policy, so the program must not run uncapped; it may try again.
    return result == CUDA_SUCCESS && !process::activate() ? CUDA_ERROR_OUT_OF_MEMORY : result;
}
