// Memory of one process in another: IPC handles and dma-bufs of plain memory, and exported pools with their pointers.
// What is opened is never charged to the opener: the process that made it holds it.
//
// Rule: plain memory is private until its first IPC handle, and is then moved to a file that the other process opens
// through /proc/PID/fd.
#include "sharing.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

#include "driver.hpp"

namespace curb::sim {

namespace {

// What an IPC handle or a pool's exported pointer says.
struct Shareable {
    uint64_t magic;
    int32_t pid;
    int32_t file;    // IPC: the exporter's descriptor
    uint64_t range;  // where the shared range begins in the file, and its size
    uint64_t size;
    uint64_t offset;  // of the allocation in the range
    uint64_t bytes;
};
constexpr uint64_t kIpcMagic = 0x6370'6962'7275'6364;
constexpr uint64_t kPoolMagic = 0x6c6f'6f70'7275'6364;
static_assert(sizeof(Shareable) <= sizeof(CUipcMemHandle) && sizeof(Shareable) <= sizeof(CUmemPoolPtrExportData));

std::map<CUdeviceptr, int> &shared_granules() {  // start of the granules -> file
    static auto &all = *new std::map<CUdeviceptr, int>;
    return all;
}

// The granules of a plain block, moved to a file if they are not there yet.
bool move_to_file(const Allocation &block, CUdeviceptr *granules, uint64_t *granules_size, int *file) {
    driver().contexts.find(block.context)->plain.extent(block.start, granules, granules_size);
    const CUdeviceptr start = *granules;
    const uint64_t size = *granules_size;
    const auto known = shared_granules().find(start);
    if (known != shared_granules().end()) {
        *file = known->second;
        return true;
    }
    *file = ::memfd_create("curb-sim-ipc", MFD_CLOEXEC);
    if (*file < 0) return false;
    for (uint64_t written = 0; written < size;) {
        const ssize_t step = ::write(*file, static_cast<char *>(host(start)) + written, size - written);
        if (step <= 0) break;
        written += static_cast<uint64_t>(step);
    }
    struct stat status {};
    const bool whole = ::fstat(*file, &status) == 0 && static_cast<uint64_t>(status.st_size) == size;
    if (!whole || !share(start, size, *file, 0)) {
        ::close(*file);
        return false;
    }
    shared_granules()[start] = *file;
    return true;
}

// Maps the range of `file` and makes the allocation in it known.
CUresult map_foreign(const Shareable &shared, int file, Allocation::Kind kind, int device, CUdeviceptr *out) {
    const CUdeviceptr range = driver().addresses.take(shared.size, kGranule);
    if (!range) return CUDA_ERROR_OUT_OF_MEMORY;
    if (!share(range, shared.size, file, shared.range)) {
        driver().addresses.give(range, shared.size);
        return CUDA_ERROR_MAP_FAILED;
    }
    *out = range + shared.offset;
    add_allocation({.kind = kind,
                    .start = *out,
                    .bytes = shared.bytes,
                    .device = device,
                    .range = range,
                    .range_size = shared.size});
    return CUDA_SUCCESS;
}

}  // namespace

void free_foreign(const Allocation &allocation) {
    const Allocation gone = allocation;
    driver().allocations.erase(gone.start);
    unshare(gone.range, gone.range_size);
    driver().addresses.give(gone.range, gone.range_size);
}

CUresult map_external(int file, uint64_t offset, uint64_t bytes, int device, CUdeviceptr *start) {
    constexpr uint64_t kPage = 4 * kKiB;
    const uint64_t first = round_down(offset, kPage);
    const Shareable shared{0, 0, file, first, round_up(offset - first + bytes, kGranule), offset - first, bytes};
    return map_foreign(shared, file, Allocation::Kind::external, device, start);
}

void end_sharing(CUdeviceptr start, uint64_t size) {
    const auto shared = shared_granules().find(start);
    if (shared == shared_granules().end()) return;
    unshare(start, size);
    ::close(shared->second);
    shared_granules().erase(shared);
}

// Only of cuMemAlloc memory.
SIM_CU(cuIpcGetMemHandle, (CUipcMemHandle * handle, CUdeviceptr address), (handle, address)) {
    const Allocation *allocation = allocation_around(address);
    if (!handle || !allocation || allocation->kind != Allocation::Kind::plain) return CUDA_ERROR_INVALID_VALUE;
    CUdeviceptr start = 0;
    uint64_t size = 0;
    int file = -1;
    if (!move_to_file(*allocation, &start, &size, &file)) return CUDA_ERROR_OUT_OF_MEMORY;
    const Shareable shared{kIpcMagic, ::getpid(), file, 0, size, allocation->start - start, allocation->bytes};
    std::memset(handle, 0, sizeof *handle);
    std::memcpy(handle, &shared, sizeof shared);
    return CUDA_SUCCESS;
}

// Whole pages of plain memory (cuda.h asks for the host's page size).
SIM_CU(cuMemGetHandleForAddressRange,
       (void *out, CUdeviceptr address, size_t bytes, CUmemRangeHandleType type, unsigned long long flags),
       (out, address, bytes, type, flags)) {
    constexpr uint64_t kPage = 4 * kKiB;
    const Allocation *allocation = allocation_around(address);
    if (!out || !allocation || allocation->kind != Allocation::Kind::plain || flags || !bytes ||
        type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD || address % kPage || bytes % kPage ||
        bytes > allocation->start + allocation->bytes - address)
        return CUDA_ERROR_INVALID_VALUE;
    CUdeviceptr start = 0;
    uint64_t size = 0;
    int file = -1;
    if (!move_to_file(*allocation, &start, &size, &file)) return CUDA_ERROR_OUT_OF_MEMORY;
    const int exported = ::fcntl(file, F_DUPFD_CLOEXEC, 0);
    if (exported < 0) return CUDA_ERROR_OPERATING_SYSTEM;
    *static_cast<int *>(out) = exported;
    return CUDA_SUCCESS;
}

SIM_CU(cuIpcOpenMemHandle_v2, (CUdeviceptr * out, CUipcMemHandle handle, [[maybe_unused]] unsigned flags),
       (out, handle, flags)) {
    Context *context = nullptr;
    if (const CUresult error = current_context(&context)) return error;
    Shareable shared;
    std::memcpy(&shared, &handle, sizeof shared);
    if (!out || shared.magic != kIpcMagic) return CUDA_ERROR_INVALID_VALUE;
    if (shared.pid == ::getpid()) return CUDA_ERROR_INVALID_CONTEXT;  // not in the process that made it (cuda.h)
    char path[64];
    std::snprintf(path, sizeof path, "/proc/%d/fd/%d", shared.pid, shared.file);
    const int file = ::open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) return CUDA_ERROR_INVALID_HANDLE;  // it or its memory is gone
    const CUresult result = map_foreign(shared, file, Allocation::Kind::ipc, context->device, out);
    ::close(file);
    return result;
}

SIM_CU(cuIpcCloseMemHandle, (CUdeviceptr start), (start)) {
    const Allocation *allocation = find_allocation(start);
    if (!allocation || allocation->kind != Allocation::Kind::ipc) return CUDA_ERROR_INVALID_VALUE;
    free_foreign(*allocation);
    return CUDA_SUCCESS;
}

SIM_CU(cuMemPoolExportToShareableHandle,
       (void *out, CUmemoryPool handle, CUmemAllocationHandleType type, unsigned long long flags),
       (out, handle, type, flags)) {
    const Pool *pool = driver().pools.find(handle);
    if (!pool || !out || flags || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || pool->file < 0 || pool->imported)
        return CUDA_ERROR_INVALID_VALUE;
    const int file = ::fcntl(pool->file, F_DUPFD_CLOEXEC, 0);
    if (file < 0) return CUDA_ERROR_OPERATING_SYSTEM;
    *static_cast<int *>(out) = file;
    return CUDA_SUCCESS;
}

SIM_CU(cuMemPoolImportFromShareableHandle,
       (CUmemoryPool * pool, void *shareable, CUmemAllocationHandleType type, unsigned long long flags),
       (pool, shareable, type, flags)) {
    const int file = static_cast<int>(reinterpret_cast<intptr_t>(shareable));
    if (!pool || flags || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || ::fcntl(file, F_GET_SEALS) < 0)
        return CUDA_ERROR_INVALID_VALUE;
    CUmemPoolProps properties{};
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
    auto made = std::make_unique<Pool>(properties);
    made->imported = true;
    made->file = ::fcntl(file, F_DUPFD_CLOEXEC, 0);
    *pool = driver().pools.add(std::move(made))->handle;
    return CUDA_SUCCESS;
}

SIM_CU(cuMemPoolExportPointer, (CUmemPoolPtrExportData * out, CUdeviceptr start), (out, start)) {
    const Allocation *allocation = find_allocation(start);
    if (!out || !allocation || allocation->kind != Allocation::Kind::pool || allocation->pool->file < 0)
        return CUDA_ERROR_INVALID_VALUE;
    const auto &[range, where] = *std::prev(allocation->pool->ranges.upper_bound(start));
    const uint64_t first = round_down(start - range, kGranule);
    const uint64_t end = round_up(start - range + allocation->bytes, kGranule);
    const Shareable shared{kPoolMagic,       ::getpid(), -1, where.offset + first, end - first, start - range - first,
                           allocation->bytes};
    std::memset(out, 0, sizeof *out);
    std::memcpy(out, &shared, sizeof shared);
    return CUDA_SUCCESS;
}

SIM_CU(cuMemPoolImportPointer, (CUdeviceptr * out, CUmemoryPool handle, CUmemPoolPtrExportData *data),
       (out, handle, data)) {
    const Pool *pool = driver().pools.find(handle);
    if (!out || !data || !pool || !pool->imported) return CUDA_ERROR_INVALID_VALUE;
    Shareable shared;
    std::memcpy(&shared, data, sizeof shared);
    if (shared.magic != kPoolMagic) return CUDA_ERROR_INVALID_VALUE;
    return map_foreign(shared, pool->file, Allocation::Kind::pool_import, 0, out);
}

}  // namespace curb::sim
