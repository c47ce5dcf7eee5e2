// Memory of graphics libraries. An imported descriptor is a file of memory (a memfd, here), mapped into the device
// address space. It is not charged here: the process that made it holds it.
#include <sys/stat.h>
#include <unistd.h>

#include "driver.hpp"
#include "sharing.hpp"

namespace curb::sim {

namespace {

struct ExternalMemory {
    ~ExternalMemory() { ::close(file); }
    static constexpr CUresult kUnknown = CUDA_ERROR_INVALID_HANDLE;
    CUexternalMemory handle = nullptr;
    int file = -1;
    uint64_t size = 0;
};

}  // namespace

// A successful import takes the descriptor over (cuda.h).
SIM_CU(10000, cuImportExternalMemory, (CUexternalMemory * memory, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *description),
       (memory, description)) {
    current_context();
    if (!memory || !description || !description->size) throw CUDA_ERROR_INVALID_VALUE;
    if (description->type != CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD) throw CUDA_ERROR_NOT_SUPPORTED;
    struct stat status {};
    const int file = description->handle.fd;
    if (::fstat(file, &status) != 0) throw CUDA_ERROR_INVALID_HANDLE;
    if (description->size > static_cast<uint64_t>(status.st_size)) throw CUDA_ERROR_INVALID_VALUE;
    auto made = std::make_unique<ExternalMemory>();
    made->file = file;
    made->size = description->size;
    *memory = all<ExternalMemory>().add(std::move(made))->handle;
}

// The buffer outlives the import, and ends with cuMemFree.
SIM_CU(10000, cuExternalMemoryGetMappedBuffer,
       (CUdeviceptr * start, CUexternalMemory handle, const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *description),
       (start, handle, description)) {
    const Context *context = current_context();
    const ExternalMemory *memory = all<ExternalMemory>().at(handle);
    if (!start || !description || !description->size || description->flags) throw CUDA_ERROR_INVALID_VALUE;
    if (description->offset > memory->size || description->size > memory->size - description->offset)
        throw CUDA_ERROR_INVALID_VALUE;
    *start = map_external(memory->file, description->offset, description->size, context->device);
}

SIM_CU(10000, cuDestroyExternalMemory, (CUexternalMemory handle), (handle)) { all<ExternalMemory>().release(handle); }

}  // namespace curb::sim
