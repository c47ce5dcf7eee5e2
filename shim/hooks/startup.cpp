// The driver's initialisation, with which curb wakes.

#include "driver.hpp"
#include "process.hpp"

using namespace curb::shim;

CUresult cuInit(unsigned flags) {
    if (!driver_loaded()) return CUDA_ERROR_NO_DEVICE;  // what a machine without a GPU answers
    const CUresult result = driver().cuInit(flags);
    // Without host memory to read the policy nobody knows what is allowed; the program may try again.
    return result == CUDA_SUCCESS && !process::activate() ? CUDA_ERROR_OUT_OF_MEMORY : result;
}
