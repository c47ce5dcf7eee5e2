// Virtual memory management: when memory is taken and given back.
#include <unistd.h>

#include "contract.hpp"

using namespace contract;

static constexpr int64_t kSize = 64 * kMiB;

TEST_CASE("address space takes nothing; physical memory is taken until its handle and its mappings are gone") {
    const bool unmaps_first = GENERATE(true, false);
    const Gpu gpu;
    const CUdeviceptr start = reserve(90 * kGiB);
    CHECK(gpu.taken() == 0);
    const auto handle = create(kSize);
    CHECK(gpu.taken() == kSize);
    map(start, handle, kSize);
    REQUIRE((unmaps_first ? cuMemUnmap(start, kSize) : cuMemRelease(handle)) == CUDA_SUCCESS);
    CHECK(gpu.taken() == kSize);
    if (!unmaps_first) CHECK(cuMemsetD8_v2(start, 1, kSize) == CUDA_SUCCESS);
    REQUIRE((unmaps_first ? cuMemRelease(handle) : cuMemUnmap(start, kSize)) == CUDA_SUCCESS);
    CHECK(gpu.taken() == 0);
    CHECK(cuMemAddressFree(start, 90 * kGiB) == CUDA_SUCCESS);
}

TEST_CASE("one unmap removes several adjacent mappings, but not a part of one") {
    const Gpu gpu;
    const CUdeviceptr start = reserve(4 * kSize);
    for (int i = 0; i < 4; ++i) {
        const auto handle = create(kSize);
        map(start + i * kSize, handle, kSize);
        REQUIRE(cuMemRelease(handle) == CUDA_SUCCESS);
    }
    CHECK(gpu.taken() == 4 * kSize);
    CHECK(cuMemUnmap(start, kSize / 2) == CUDA_ERROR_INVALID_VALUE);
    REQUIRE(cuMemUnmap(start, 4 * kSize) == CUDA_SUCCESS);
    CHECK(gpu.taken() == 0);
    cuMemAddressFree(start, 4 * kSize);
}

TEST_CASE("a handle retained by address is one more reference") {
    const Gpu gpu;
    const CUdeviceptr start = reserve(kSize);
    const auto handle = create(kSize);
    map(start, handle, kSize);
    CUmemGenericAllocationHandle again = 0;
    REQUIRE(cuMemRetainAllocationHandle(&again, as_pointer(start + 100)) == CUDA_SUCCESS);
    REQUIRE(cuMemUnmap(start, kSize) == CUDA_SUCCESS);
    REQUIRE(cuMemRelease(handle) == CUDA_SUCCESS);
    CHECK(gpu.taken() == kSize);
    REQUIRE(cuMemRelease(again) == CUDA_SUCCESS);
    CHECK(gpu.taken() == 0);
    cuMemAddressFree(start, kSize);
}

TEST_CASE("two mappings of one handle show the same bytes") {
    const Gpu gpu;
    const CUdeviceptr start = reserve(2 * kSize);
    const auto handle = create(kSize);
    map(start, handle, kSize);
    map(start + kSize, handle, kSize);
    REQUIRE(cuMemsetD8_v2(start, 0x5a, kSize) == CUDA_SUCCESS);
    CHECK(byte_at(start + 2 * kSize - 1) == 0x5a);
    CHECK(gpu.taken() == kSize);
    REQUIRE(cuMemUnmap(start, 2 * kSize) == CUDA_SUCCESS);
    cuMemRelease(handle);
    cuMemAddressFree(start, 2 * kSize);
}

TEST_CASE("memory on the host takes nothing of the device") {
    const Gpu gpu;
    CUmemAllocationProp properties = on_device(0);
    properties.location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, 0};
    CUmemGenericAllocationHandle handle = 0;
    REQUIRE(cuMemCreate(&handle, kSize, &properties, 0) == CUDA_SUCCESS);
    CHECK(gpu.taken() == 0);
    CHECK(cuMemRelease(handle) == CUDA_SUCCESS);
}

TEST_CASE("an exported handle can be imported again and is charged once") {
    const Gpu gpu;
    const auto handle = create(kSize, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    int file = -1;
    REQUIRE(cuMemExportToShareableHandle(&file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) == CUDA_SUCCESS);
    CUmemGenericAllocationHandle imported = 0;
    REQUIRE(cuMemImportFromShareableHandle(&imported, as_pointer(file), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) ==
            CUDA_SUCCESS);
    ::close(file);
    CHECK(gpu.taken() == kSize);
    REQUIRE(cuMemRelease(handle) == CUDA_SUCCESS);
    CHECK(gpu.taken() == kSize);
    REQUIRE(cuMemRelease(imported) == CUDA_SUCCESS);
    CHECK(gpu.taken() == 0);
}

TEST_CASE("creating, mapping and freeing refuse wrong arguments") {
    const Gpu gpu;
    CUmemAllocationProp properties = on_device(0);
    CUmemGenericAllocationHandle handle = 0;
    size_t granularity = 0;
    REQUIRE(cuMemGetAllocationGranularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM) == CUDA_SUCCESS);
    CHECK(granularity == 2 * kMiB);
    CHECK(cuMemCreate(&handle, granularity + 1, &properties, 0) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemCreate(&handle, 0, &properties, 0) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemCreate(&handle, uint64_t{1} << 62, &properties, 0) == CUDA_ERROR_OUT_OF_MEMORY);
    // Handles that never existed are not tried: the real driver takes them for addresses and crashes.
    CHECK(cuMemRetainAllocationHandle(&handle, &handle) == CUDA_ERROR_INVALID_VALUE);

    const CUdeviceptr start = reserve(kSize);
    handle = create(kSize);
    CHECK(cuMemMap(start, 2 * kSize, 0, handle, 0) == CUDA_ERROR_NOT_SUPPORTED);
    CHECK(cuMemMap(start + kSize, kSize, 0, handle, 0) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemUnmap(start, kSize) == CUDA_SUCCESS);  // nothing is mapped there
    CHECK(cuMemAddressFree(start, kSize / 2) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemAddressFree(start, kSize) == CUDA_SUCCESS);
    CHECK(cuMemRelease(handle) == CUDA_SUCCESS);
    CHECK(gpu.taken() == 0);
}
