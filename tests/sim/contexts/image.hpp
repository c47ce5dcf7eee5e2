// Images of modules. Real code is not read. The simulator's own lines (sim.h), alone or as comments of a PTX text that
// a real driver compiles, declare what the module takes and what its kernels need.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "machine.hpp"

namespace curb::sim {

struct KernelNeeds {
    std::string name;
    uint64_t local = 0;    // bytes of local memory for each thread
    bool mallocs = false;  // calls malloc, so its launch takes the context's heap
    uint64_t us = 0;       // microseconds that it runs
    uint64_t blocks = 0;   // pointers among its parameters, the first ones: it has their blocks to itself
};

struct Image {
    uint64_t data = 2 * kMiB;  // taken when it is loaded into a context
    uint64_t code = 0;         // taken at the first function look-up, or at the load under CUDA_MODULE_LOADING=EAGER
    uint64_t global = 0;       // a variable, taken when it is loaded
    uint64_t once = 0;         // taken when it is loaded, and kept by the context when it is unloaded
    bool any_kernel = true;    // every name is a kernel that needs nothing
    std::vector<KernelNeeds> kernels = {};

    const KernelNeeds *find(const std::string &name) const;
};

// Returns the defaults for an image without such lines.
Image read_image(const void *image);
// False if there is no such file.
bool read_image_file(const char *path, Image *image);

}  // namespace curb::sim
