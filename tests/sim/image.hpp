// What a module's image says of itself. Real code is not read: a text of the simulator's own says what the module takes
// and what its kernels need (sim.h), by itself or in the comments of a PTX text, which a real driver compiles.
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
    uint64_t us = 0;       // for which it runs
    uint64_t blocks = 0;   // parameters that are pointers, the first ones: it has their blocks for itself
};

struct Image {
    uint64_t data = 2 * kMiB;  // taken when it is loaded into a context
    uint64_t code = 0;         // taken when the first function is got, or with the rest under CUDA_MODULE_LOADING=EAGER
    uint64_t global = 0;       // a variable, taken when it is loaded
    uint64_t once = 0;         // taken when it is loaded, and kept by the context when it is unloaded
    bool any_kernel = true;    // every name is a kernel's that needs nothing
    std::vector<KernelNeeds> kernels = {};

    const KernelNeeds *find(const std::string &name) const;
};

// An ordinary image is one that says nothing of itself.
Image read_image(const void *image);
// False: no such file.
bool read_image_file(const char *path, Image *image);

}  // namespace curb::sim
