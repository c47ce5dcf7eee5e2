// Memory of another process or library, for the rest of the driver.
#pragma once

#include <cstdint>

#include "abi/cuda_abi.h"

namespace curb::sim {

struct Allocation;

void free_foreign(const Allocation &allocation);  // entry and addresses
// Makes a range of another library's memory known at the address that it returns.
CUdeviceptr map_external(int file, uint64_t offset, uint64_t bytes, int device);
// Writes another descriptor of `file` to `out`, where a call exports one.
void export_file(int file, void *out);
// Granules about to be given back: takes away the file that IPC put there. Returns its id on the machine; 0: none.
uint64_t end_sharing(CUdeviceptr start, uint64_t size);

}  // namespace curb::sim
