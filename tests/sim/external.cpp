// Memory of graphics libraries. An imported descriptor is a file of memory (a memfd, here), mapped into the device
// address space; it is charged to nobody, as the process that made it holds it.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "driver.hpp"
#include "sharing.hpp"

namespace curb::sim {

namespace {

struct ExternalMemory {
    ~ExternalMemory() { ::close(file); }
    CUexternalMemory handle = nullptr;
    int file = -1;
    uint64_t size = 0;
};

Registry<CUexternalMemory, ExternalMemory> &imported() {
    static auto &all = *new Registry<CUexternalMemory, ExternalMemory>;
    return all;
}

}  // namespace

// A successful import takes the descriptor over (cuda.h).
SIM_CU(cuImportExternalMemory, (CUexternalMemory * memory, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *description),
       (memory, description)) {
    Context *context = nullptr;
    if (const CUresult error = current_context(&context)) return error;
    if (!memory || !description || !description->size) return CUDA_ERROR_INVALID_VALUE;
    if (description->type != CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD) return CUDA_ERROR_NOT_SUPPORTED;
    struct stat status {};
    const int file = description->handle.fd;
    if (::fstat(file, &status) != 0) return CUDA_ERROR_INVALID_HANDLE;
    if (description->size > static_cast<uint64_t>(status.st_size)) return CUDA_ERROR_INVALID_VALUE;
    auto made = std::make_unique<ExternalMemory>();
    made->file = file;
    made->size = description->size;
    *memory = imported().add(std::move(made))->handle;
    return CUDA_SUCCESS;
}

// The buffer stays when the import is destroyed, and ends with cuMemFree.
SIM_CU(cuExternalMemoryGetMappedBuffer,
       (CUdeviceptr * start, CUexternalMemory handle, const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *description),
       (start, handle, description)) {
    const ExternalMemory *memory = imported().find(handle);
    Context *context = nullptr;
    if (const CUresult error = current_context(&context)) return error;
    if (!memory) return CUDA_ERROR_INVALID_HANDLE;
    if (!start || !description || !description->size || description->flags) return CUDA_ERROR_INVALID_VALUE;
    if (description->offset > memory->size || description->size > memory->size - description->offset)
        return CUDA_ERROR_INVALID_VALUE;
    return map_external(memory->file, description->offset, description->size, context->device, start);
}

SIM_CU(cuDestroyExternalMemory, (CUexternalMemory handle), (handle)) {
    return imported().remove(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

}  // namespace curb::sim
