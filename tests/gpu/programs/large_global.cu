// A module with a global array of 256 MiB, compiled to a cubin for paths.cpp.

__device__ char large[256 << 20];

extern "C" __global__ void touch() { large[0] = 1; }
