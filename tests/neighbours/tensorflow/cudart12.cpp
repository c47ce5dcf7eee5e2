// The part of CUDA 12's runtime that TensorFlow calls, on a machine with the simulated driver: every function succeeds
// and does nothing. TensorFlow allocates, copies and synchronises through the driver; from the runtime it needs the
// registration of its kernels, their launches, and a few properties. Kernels do not run on the simulated driver, so
// launches may do nothing. Names and signatures: CUDA Runtime API 12, declared here because no toolkit is needed to
// build the tests.

#include <cstddef>
#include <cstring>

namespace {

constexpr int kSuccess = 0;

// cudaDeviceProp as it is since CUDA 12.0. Eigen divides by several of the members to size its launches.
struct DeviceProperties {
    char name[256], uuid[16], luid[8];
    unsigned luid_node_mask;
    std::size_t memory_bytes, block_shared_bytes;
    int block_registers, warp_threads;
    std::size_t memory_pitch;
    int block_threads, block_dimensions[3], grid_dimensions[3], clock_rate;
    std::size_t constant_bytes;
    int major, minor;
    std::size_t texture_alignment, texture_pitch_alignment;
    int device_overlap, multiprocessors, flags[4], textures_and_surfaces[40];
    std::size_t surface_alignment;
    int more[12], multiprocessor_threads;
    char rest[404];
};
static_assert(offsetof(DeviceProperties, multiprocessors) == 388);
static_assert(offsetof(DeviceProperties, surface_alignment) == 568);
static_assert(offsetof(DeviceProperties, multiprocessor_threads) == 624);
static_assert(sizeof(DeviceProperties) == 1032);

struct FunctionAttributes {
    std::size_t shared_bytes, constant_bytes, local_bytes;
    int most_threads, registers, ptx_version, binary_version, cache_mode, most_dynamic_shared_bytes;
};

struct Dimensions {
    unsigned x, y, z;
};

struct Launch {
    Dimensions grid, block;
    std::size_t shared_bytes;
    void *stream;
};

thread_local Launch next_launch{};
int fat_binary = 0;

}  // namespace

extern "C" {

void **__cudaRegisterFatBinary(void *) {
    static void *handle = &fat_binary;
    return &handle;
}
void __cudaRegisterFatBinaryEnd(void **) {}
void __cudaUnregisterFatBinary(void **) {}
void __cudaRegisterFunction(void **, const char *, char *, const char *, int, void *, void *, void *, void *, int *) {}
void __cudaRegisterVar(void **, char *, char *, const char *, int, std::size_t, int, int) {}

// The compiler's code for `kernel<<<…>>>` pushes the configuration, and the kernel's stub pops it.
unsigned __cudaPushCallConfiguration(Dimensions grid, Dimensions block, std::size_t shared_bytes, void *stream) {
    next_launch = {grid, block, shared_bytes, stream};
    return kSuccess;
}
int __cudaPopCallConfiguration(Dimensions *grid, Dimensions *block, std::size_t *shared_bytes, void **stream) {
    *grid = next_launch.grid;
    *block = next_launch.block;
    *shared_bytes = next_launch.shared_bytes;
    *stream = next_launch.stream;
    return kSuccess;
}
int cudaLaunchKernel(const void *, Dimensions, Dimensions, void **, std::size_t, void *) { return kSuccess; }
int cudaFuncGetAttributes(void *attributes, const void *) {
    FunctionAttributes found{};
    found.most_threads = 1024;
    std::memcpy(attributes, &found, sizeof found);
    return kSuccess;
}
int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *, int, std::size_t, unsigned) {
    *blocks = 1;
    return kSuccess;
}

int cudaRuntimeGetVersion(int *version) {
    *version = 12090;
    return kSuccess;
}
int cudaDriverGetVersion(int *version) {
    *version = 13000;
    return kSuccess;
}
int cudaGetDeviceCount(int *count) {
    *count = 1;
    return kSuccess;
}
int cudaGetDevice(int *device) {
    *device = 0;
    return kSuccess;
}
int cudaSetDevice(int) { return kSuccess; }
int cudaGetDeviceProperties_v2(void *properties, int) {
    DeviceProperties found{};
    found.block_shared_bytes = 48 << 10;
    found.block_registers = 64 << 10;
    found.warp_threads = 32;
    found.block_threads = 1024;
    found.major = 9;
    found.multiprocessors = 132;
    found.multiprocessor_threads = 2048;
    std::memcpy(properties, &found, sizeof found);
    return kSuccess;
}
int cudaDeviceGetAttribute(int *value, int, int) {
    *value = 1;
    return kSuccess;
}
int cudaDeviceSynchronize() { return kSuccess; }
int cudaStreamQuery(void *) { return kSuccess; }
int cudaMemcpyAsync(void *, const void *, std::size_t, int, void *) { return kSuccess; }
int cudaMemsetAsync(void *, int, std::size_t, void *) { return kSuccess; }
int cudaMemset2DAsync(void *, std::size_t, int, std::size_t, std::size_t, void *) { return kSuccess; }
int cudaMemcpyToSymbol(const void *, const void *, std::size_t, std::size_t, int) { return kSuccess; }
int cudaGetLastError() { return kSuccess; }
int cudaPeekAtLastError() { return kSuccess; }
const char *cudaGetErrorName(int error) { return error == kSuccess ? "cudaSuccess" : "cudaErrorUnknown"; }
const char *cudaGetErrorString(int error) { return cudaGetErrorName(error); }
}
