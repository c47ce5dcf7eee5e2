// The driver's initialisation, with which curb wakes.

#include "activate.hpp"
#include "driver.hpp"

using namespace curb::shim;

CUresult cuInit(unsigned flags) {
    const CUresult result = driver().cuInit(flags);
    if (!driver_loaded()) return result;
    // Without host memory to read the policy nobody knows what is allowed; the program may try again.
    return result == CUDA_SUCCESS && !process::activate() ? CUDA_ERROR_OUT_OF_MEMORY : result;
}
