// The driver's initialisation, with which curb wakes.

#include "driver.hpp"
#include "process.hpp"

using namespace curb::shim;

CUresult cuInit(unsigned flags) {
    if (!driver_loaded()) return CUDA_ERROR_NO_DEVICE;  // what a machine without a GPU answers
    const CUresult result = driver().cuInit(flags);
    if (result == CUDA_SUCCESS) process::activate();
    return result;
}
