#include "blocks/answers.hpp"

#include "accounting/blocks.hpp"
#include "host/process_state.hpp"

namespace curb::shim::blocks {
namespace {

// Returns the block whose granules have the address.
std::optional<vmm::Block> block_around(CUdeviceptr address) noexcept {
    return process::active() && vmm::any_blocks() ? vmm::block_around(address) : std::nullopt;
}

bool is_in_use(const vmm::Block &block, CUdeviceptr address) noexcept { return address - block.start < block.asked; }

// Replaces the driver's answer about an address that is in use.
void correct(void *value, CUpointer_attribute attribute, const vmm::Block &block) noexcept {
    const auto id = [&](vmm::BlockId which) {
        auto &drivers = *static_cast<unsigned long long *>(value);
        drivers = vmm::block_id(block.start, which, drivers);
    };
    switch (attribute) {
        case CU_POINTER_ATTRIBUTE_CONTEXT: *static_cast<CUcontext *>(value) = block.context; break;
        case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *static_cast<std::size_t *>(value) = block.asked; break;
        case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE: *static_cast<unsigned *>(value) = 1; break;
        case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES: *static_cast<std::uint64_t *>(value) = 0; break;
        case CU_POINTER_ATTRIBUTE_BUFFER_ID: id(vmm::BlockId::buffer); break;
        case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID: id(vmm::BlockId::memory_block); break;
        case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
            if (const auto set = vmm::sync_memops(block.start)) *static_cast<unsigned *>(value) = *set;
            break;
        default: break;
    }
}

}  // namespace

CUresult address_range(CUdeviceptr *start, std::size_t *bytes, CUdeviceptr address) {
    const auto block = block_around(address);
    if (block && !is_in_use(*block, address)) return CUDA_ERROR_NOT_FOUND;
    const CUresult result = driver().cuMemGetAddressRange_v2(start, bytes, address);
    if (block && result == CUDA_SUCCESS && bytes) *bytes = block->asked;
    return result;
}

CUresult attribute(void *value, CUpointer_attribute attribute, CUdeviceptr address) {
    const auto block = block_around(address);
    if (block && !is_in_use(*block, address)) return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = driver().cuPointerGetAttribute(value, attribute, address);
    if (block && result == CUDA_SUCCESS) correct(value, attribute, *block);
    return result;
}

CUresult attributes(unsigned count, CUpointer_attribute *attributes, void **values, CUdeviceptr address) {
    const auto block = block_around(address);
    const bool is_unused = block && !is_in_use(*block, address);
    // No memory: what the driver answers of an address that it does not know, it answers of this one.
    constexpr CUdeviceptr kUnknown = 4096;
    const CUresult result = driver().cuPointerGetAttributes(count, attributes, values, is_unused ? kUnknown : address);
    if (!block || result != CUDA_SUCCESS) return result;
    for (unsigned i = 0; i < count; ++i) {
        if (!is_unused)
            correct(values[i], attributes[i], *block);
        else if (attributes[i] == CU_POINTER_ATTRIBUTE_HOST_POINTER)
            *static_cast<CUdeviceptr *>(values[i]) = address;
    }
    return result;
}

// The driver sets no attribute of such memory, which always has this one: its copies are synchronous already.
CUresult set_attribute(const void *value, CUpointer_attribute attribute, CUdeviceptr address) {
    const auto block = value && attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS ? block_around(address) : std::nullopt;
    if (!block) return driver().cuPointerSetAttribute(value, attribute, address);
    if (!is_in_use(*block, address)) return CUDA_ERROR_INVALID_VALUE;
    vmm::set_sync_memops(block->start, *static_cast<const unsigned *>(value));
    return CUDA_SUCCESS;
}

CUresult access(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr address) {
    const auto block = block_around(address);
    if (block && !is_in_use(*block, address)) return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = driver().cuMemGetAccess(flags, location, address);
    if (block && result == CUDA_SUCCESS) *flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return result;
}

bool any_in(CUdeviceptr address, std::size_t bytes) noexcept {
    return process::active() && vmm::any_blocks() && vmm::any_block_in(address, bytes);
}

}  // namespace curb::shim::blocks
