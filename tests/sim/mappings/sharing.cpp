// Memory of one process in another: IPC handles and dma-bufs of plain memory, and exported pools with their pointers.
// Opened memory is not charged to the process that opens it: the one that made it holds it. Plain memory and exported
// handles stay on the device while a process has them. So does the memory of a pool that grew at once with a block that
// a process has imported.
//
// Rule: plain memory is private until its first IPC handle, and is then moved to a file that the other process opens
// through /proc/PID/fd.
#include "sharing.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "driver.hpp"

namespace curb::sim {

namespace {

// The contents of an IPC handle or of a pool's exported pointer.
struct Shareable {
    uint64_t magic;
    int32_t pid;
    int32_t file;    // IPC: the exporter's descriptor
    uint64_t range;  // where the shared range begins in the file, and its size
    uint64_t size;
    uint64_t offset;  // of the allocation in the range
    uint64_t bytes;
    uint64_t id;  // pools: of the memory on this machine
};
constexpr uint64_t kIpcMagic = 0x6370'6962'7275'6364;
constexpr uint64_t kPoolMagic = 0x6c6f'6f70'7275'6364;
static_assert(sizeof(Shareable) <= sizeof(CUipcMemHandle) && sizeof(Shareable) <= sizeof(CUmemPoolPtrExportData));

struct SharedGranules {
    int file;
    uint64_t id;
};
std::map<CUdeviceptr, SharedGranules> &shared_granules() {  // by their start
    static auto &all = *new std::map<CUdeviceptr, SharedGranules>;
    return all;
}

struct Granules {
    CUdeviceptr start = 0;
    uint64_t size = 0;
    int file = -1;
};

// Returns the granules of a plain block, moved to a file if they are not there yet.
Granules move_to_file(const Allocation &block) {
    Granules granules;
    auto &[start, size, file] = granules;
    all<Context>().find(block.context)->plain.extent(block.start, &start, &size);
    const auto known = shared_granules().find(start);
    if (known != shared_granules().end()) {
        file = known->second.file;
        return granules;
    }
    file = ::memfd_create("curb-sim-ipc", MFD_CLOEXEC);
    if (file < 0) throw CUDA_ERROR_OUT_OF_MEMORY;
    for (uint64_t written = 0; written < size;) {
        const ssize_t step = ::write(file, static_cast<char *>(host(start)) + written, size - written);
        if (step <= 0) break;
        written += static_cast<uint64_t>(step);
    }
    struct stat status {};
    const bool whole = ::fstat(file, &status) == 0 && static_cast<uint64_t>(status.st_size) == size;
    if (!whole || !driver().machine->share(status.st_ino, device_at(block.device).gpu, Use::plain, size) ||
        !share(start, size, file, 0)) {
        ::close(file);
        throw CUDA_ERROR_OUT_OF_MEMORY;
    }
    shared_granules()[start] = {file, status.st_ino};
    return granules;
}

// Maps the range of `file` and makes the allocation in it known, whose address it returns.
CUdeviceptr map_foreign(const Shareable &shared, int file, Allocation::Kind kind, int device) {
    const CUdeviceptr range = driver().addresses.take(shared.size, kGranule);
    if (!range) throw CUDA_ERROR_OUT_OF_MEMORY;
    if (!share(range, shared.size, file, shared.range)) {
        driver().addresses.give(range, shared.size);
        throw CUDA_ERROR_MAP_FAILED;
    }
    const CUdeviceptr start = range + shared.offset;
    add_allocation({.kind = kind,
                    .start = start,
                    .bytes = shared.bytes,
                    .device = device,
                    .range = range,
                    .range_size = shared.size});
    return start;
}

// The handles and the exported pointers are opaque bytes.
template <class Opaque>
void write(Opaque *out, const Shareable &shared) {
    std::memset(out, 0, sizeof *out);
    std::memcpy(out, &shared, sizeof shared);
}

template <class Opaque>
Shareable read(const Opaque *from, uint64_t magic) {
    Shareable shared;
    std::memcpy(&shared, from, sizeof shared);
    return shared.magic == magic ? shared : throw CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

void free_foreign(const Allocation &allocation) {
    const Allocation gone = allocation;
    driver().allocations.erase(gone.start);
    unshare(gone.range, gone.range_size);
    driver().addresses.give(gone.range, gone.range_size);
    // The granules may hold another block that is open.
    const auto &others = driver().allocations;
    if (gone.shared_id && std::none_of(others.begin(), others.end(),
                                       [&](const auto &one) { return one.second.shared_id == gone.shared_id; }))
        driver().machine->close_shared(gone.shared_id);
}

CUdeviceptr map_external(int file, uint64_t offset, uint64_t bytes, int device) {
    constexpr uint64_t kPage = 4 * kKiB;
    const uint64_t first = round_down(offset, kPage);
    const Shareable shared{0, 0, file, first, round_up(offset - first + bytes, kGranule), offset - first, bytes, 0};
    return map_foreign(shared, file, Allocation::Kind::external, device);
}

void export_file(int file, void *out) {
    const int exported = ::fcntl(file, F_DUPFD_CLOEXEC, 0);
    if (exported < 0) throw CUDA_ERROR_OPERATING_SYSTEM;
    *static_cast<int *>(out) = exported;
}

uint64_t end_sharing(CUdeviceptr start, uint64_t size) {
    const auto shared = shared_granules().find(start);
    if (shared == shared_granules().end()) return 0;
    const auto [file, id] = shared->second;
    unshare(start, size);
    ::close(file);
    shared_granules().erase(shared);
    return id;
}

// Only of cuMemAlloc memory.
SIM_CU(4010, cuIpcGetMemHandle, (CUipcMemHandle * handle, CUdeviceptr address), (handle, address)) {
    const Allocation *allocation = allocation_around(address);
    if (!handle || !allocation || allocation->kind != Allocation::Kind::plain) throw CUDA_ERROR_INVALID_VALUE;
    const auto [start, size, file] = move_to_file(*allocation);
    write(handle, {kIpcMagic, ::getpid(), file, 0, size, allocation->start - start, allocation->bytes, 0});
}

// Whole pages of plain memory and of mappings (cuda.h asks for the host's page size).
SIM_CU(11070, cuMemGetHandleForAddressRange,
       (void *out, CUdeviceptr address, size_t bytes, CUmemRangeHandleType type, unsigned long long flags),
       (out, address, bytes, type, flags)) {
    constexpr uint64_t kPage = 4 * kKiB;
    const Allocation *allocation = allocation_around(address);
    const bool is_mapping = allocation && allocation->kind == Allocation::Kind::mapping;
    if (!out || !allocation || (allocation->kind != Allocation::Kind::plain && !is_mapping) || flags || !bytes ||
        type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD || address % kPage || bytes % kPage ||
        bytes > allocation->start + allocation->bytes - address)
        throw CUDA_ERROR_INVALID_VALUE;
    export_file(is_mapping ? all<VmmAllocation>().find(allocation->handle)->file : move_to_file(*allocation).file, out);
}

static void open_ipc(CUdeviceptr *out, const CUipcMemHandle &handle) {
    const Context *context = current_context();
    const Shareable shared = read(&handle, kIpcMagic);
    if (!out) throw CUDA_ERROR_INVALID_VALUE;
    if (shared.pid == ::getpid()) throw CUDA_ERROR_INVALID_CONTEXT;  // not in the process that made it (cuda.h)
    char path[64];
    std::snprintf(path, sizeof path, "/proc/%d/fd/%d", shared.pid, shared.file);
    const int file = ::open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) throw CUDA_ERROR_INVALID_HANDLE;  // it or its memory is gone
    struct stat status {};
    const CUresult result = result_of([&] {
        if (::fstat(file, &status) != 0) throw CUDA_ERROR_INVALID_HANDLE;
        for (auto &[start, known] : driver().allocations) {
            if (known.shared_id != status.st_ino || start - known.range != shared.offset) continue;
            ++known.opens;  // the same address again (cuda.h, cuIpcCloseMemHandle)
            *out = start;
            return;
        }
        driver().machine->open_shared(status.st_ino);
        *out = map_foreign(shared, file, Allocation::Kind::ipc, context->device);
        find_allocation(*out)->shared_id = status.st_ino;
    });
    ::close(file);
    if (result) throw result;
}

SIM_CU(4010, cuIpcOpenMemHandle, (CUdeviceptr * out, CUipcMemHandle handle, unsigned flags), (out, handle, flags)) {
    open_ipc(out, handle);
}

SIM_CU(11000, cuIpcOpenMemHandle_v2, (CUdeviceptr * out, CUipcMemHandle handle, unsigned flags), (out, handle, flags)) {
    open_ipc(out, handle);
}

SIM_CU(4010, cuIpcCloseMemHandle, (CUdeviceptr start), (start)) {
    Allocation *allocation = find_allocation(start);
    if (!allocation || allocation->kind != Allocation::Kind::ipc) throw CUDA_ERROR_INVALID_VALUE;
    if (--allocation->opens == 0) free_foreign(*allocation);
}

SIM_CU(11020, cuMemPoolExportToShareableHandle,
       (void *out, CUmemoryPool handle, CUmemAllocationHandleType type, unsigned long long flags),
       (out, handle, type, flags)) {
    const Pool *pool = all<Pool>().find(handle);
    if (!pool || !out || flags || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || pool->file < 0 || pool->imported)
        throw CUDA_ERROR_INVALID_VALUE;
    export_file(pool->file, out);
}

SIM_CU(11020, cuMemPoolImportFromShareableHandle,
       (CUmemoryPool * pool, void *shareable, CUmemAllocationHandleType type, unsigned long long flags),
       (pool, shareable, type, flags)) {
    const int file = static_cast<int>(reinterpret_cast<intptr_t>(shareable));
    if (!pool || flags || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || ::fcntl(file, F_GET_SEALS) < 0)
        throw CUDA_ERROR_INVALID_VALUE;
    CUmemPoolProps properties{};
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
    auto made = std::make_unique<Pool>(properties);
    made->imported = true;
    made->file = ::fcntl(file, F_DUPFD_CLOEXEC, 0);
    *pool = all<Pool>().add(std::move(made))->handle;
}

// Returns the id on the machine of memory by which the pool has grown at once, which others may open from now on.
static uint64_t share_range(const Pool &pool, const Pool::Range &range) {
    struct stat status {};
    if (::fstat(pool.file, &status) != 0) throw CUDA_ERROR_OUT_OF_MEMORY;
    const uint64_t id = (status.st_ino << 24 | range.offset / kPoolUnit) + 1;
    if (!driver().machine->share(id, device_at(pool.properties.location.id).gpu, Use::pools, range.size))
        throw CUDA_ERROR_OUT_OF_MEMORY;
    return id;
}

SIM_CU(11020, cuMemPoolExportPointer, (CUmemPoolPtrExportData * out, CUdeviceptr start), (out, start)) {
    const Allocation *allocation = find_allocation(start);
    if (!out || !allocation || allocation->kind != Allocation::Kind::pool || allocation->pool->file < 0)
        throw CUDA_ERROR_INVALID_VALUE;
    auto &[range, where] = *std::prev(allocation->pool->ranges.upper_bound(start));
    if (where.shared_id == 0) where.shared_id = share_range(*allocation->pool, where);
    const uint64_t first = round_down(start - range, kGranule);
    const uint64_t end = round_up(start - range + allocation->bytes, kGranule);
    write(out, {kPoolMagic, ::getpid(), -1, where.offset + first, end - first, start - range - first, allocation->bytes,
                where.shared_id});
}

SIM_CU(11020, cuMemPoolImportPointer, (CUdeviceptr * out, CUmemoryPool handle, CUmemPoolPtrExportData *data),
       (out, handle, data)) {
    const Pool *pool = all<Pool>().find(handle);
    if (!out || !data || !pool || !pool->imported) throw CUDA_ERROR_INVALID_VALUE;
    const Shareable shared = read(data, kPoolMagic);
    driver().machine->open_shared(shared.id);
    *out = map_foreign(shared, pool->file, Allocation::Kind::pool_import, 0);
    find_allocation(*out)->shared_id = shared.id;
}

}  // namespace curb::sim
