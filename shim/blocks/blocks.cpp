#include "blocks/blocks.hpp"

#include "accounting/blocks.hpp"
#include "blocks/applies.hpp"
#include "blocks/ipc.hpp"
#include "blocks/making.hpp"
#include "contexts/captures.hpp"
#include "contexts/contexts.hpp"
#include "driver/as_one_call.hpp"
#include "host/process_state.hpp"
#include "policy/values/granule.hpp"

namespace curb::shim::blocks {
namespace {

using policy::kGranule;
using vmm::Block;

bool has(const Device &device, CUdevice_attribute attribute) noexcept {
    int value = 0;
    const auto ask = [&] { return driver_behind_gate().cuDeviceGetAttribute(&value, attribute, device.ordinal); };
    return ask_twice(ask) == CUDA_SUCCESS && value != 0;
}

CUmemAllocationProp properties_on(const Device &device) noexcept {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device.ordinal};
    // As memory of cuMemAlloc is, for network cards. A create takes 6 us more with it (measured on an H100).
    properties.allocFlags.gpuDirectRDMACapable =
        has(device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED) ? 1 : 0;
    // For CUDA IPC. It costs a create nothing (measured on an H100).
    if (has(device, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED))
        properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    return properties;
}

// cuMemAlloc and cuMemFree are refused during captures of some modes, and end them; the calls that make a block are
// not. So a small block shows what the driver answers now. It waits for the context's work, as cuMemFree does.
CUresult try_small_block() {
    CUdeviceptr small = 0;
    const CUresult result = driver().cuMemAlloc_v2(&small, 1);
    return result == CUDA_SUCCESS ? driver().cuMemFree_v2(small) : result;
}

bool grant(const Driver &to, const Block &block, int reader) {
    const CUmemAccessDesc access = access_for(reader);
    const auto set = [&] { return to.cuMemSetAccess(block.start, block.bytes, &access, 1); };
    return ask_twice(set) == CUDA_SUCCESS && vmm::block_accessible(block.start, access);
}

// nullopt: only cuMemAlloc can serve this.
std::optional<CUresult> make(CUdeviceptr *pointer, Bytes bytes, Device &device, CUcontext owner) {
    if (captures::any())
        if (const CUresult refused = try_small_block(); refused != CUDA_SUCCESS) return refused;
    const CUmemAccessDesc access = access_for(device.ordinal);
    const CUresult result = as_one_call<&Driver::cuMemAlloc_v2>([&](const Driver &to) {
        const auto properties = properties_on(device);
        Making making(to, policy::round_up(bytes, kGranule));
        const auto create = [&](vmm::Handle *handle) { return to.cuMemCreate(handle, making.bytes, &properties, 0); };
        CUresult made = making.run(create, access);
        const Block block{making.start, &device, owner, bytes, making.bytes};
        if (made == CUDA_SUCCESS && !vmm::add_block(block, making.handle, properties, access))
            made = CUDA_ERROR_UNKNOWN;
        if (made != CUDA_SUCCESS) return made;
        making.is_kept = true;
        if (!grant_to_others(to, block, device)) {
            vmm::BlockRemoval removal(block.start);
            end(to, removal);
            return CUDA_ERROR_UNKNOWN;
        }
        *pointer = block.start;
        return CUDA_SUCCESS;
    });
    const bool is_answer =
        result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY || result == CUDA_ERROR_DEINITIALIZED;
    return is_answer ? std::optional(result) : std::nullopt;
}

}  // namespace

bool grant_to_others(const Driver &to, const Block &block, const Device &user) {
    for (const Device &device : devices::all())
        if (&device != &user && device.contexts.live != 0 && !grant(to, block, device.ordinal)) return false;
    return true;
}

std::optional<CUresult> wait_for_work(CUcontext owner) {
    const auto wait = []() -> std::optional<CUresult> {
        const auto result = captures::any() ? std::nullopt : captures::synchronise_current_context();
        return result ? *result : try_small_block();
    };
    if (current_context() == owner) return wait();
    const contexts::Pin pin(owner);
    const contexts::Current context(owner);
    return pin && context ? wait() : std::nullopt;
}

CUresult end(const Driver &to, vmm::BlockRemoval &removal) {
    const Block block = *removal.operator->();
    // Released first: the mapping keeps the memory, so whichever call fails, the block is as before.
    vmm::Handle handle = removal.take_handle();
    if (handle != 0) {
        if (const CUresult result = to.cuMemRelease(handle); result != CUDA_SUCCESS) {
            removal.put_handle(handle);
            return result;
        }
    }
    const CUresult result = to.cuMemUnmap(block.start, block.bytes);
    if (result != CUDA_SUCCESS) {
        void *const start = reinterpret_cast<void *>(block.start);
        if (handle != 0 && to.cuMemRetainAllocationHandle(&handle, start) == CUDA_SUCCESS) removal.put_handle(handle);
        return result;
    }
    removal.commit();
    to.cuMemAddressFree(block.start, block.bytes);
    return CUDA_SUCCESS;
}

CUresult allocate(CUdeviceptr *pointer, Bytes bytes, Device &device, CUcontext owner) {
    if (bytes >= kGranule && bytes <= device.total && applies())
        if (const auto result = make(pointer, bytes, device, owner)) return *result;
    return driver().cuMemAlloc_v2(pointer, bytes);
}

CUresult allocate_pitch(CUdeviceptr *pointer, std::size_t *pitch, const Rows &rows, Device &device, CUcontext owner) {
    // The driver's pitch (measured on an H200).
    constexpr std::size_t kRow = 512;
    const std::size_t row = policy::round_up(rows.width, kRow);
    const bool is_valid = rows.element == 4 || rows.element == 8 || rows.element == 16;
    Bytes bytes = 0;
    if (is_valid && !__builtin_mul_overflow(row, rows.height, &bytes) && bytes >= kGranule && bytes <= device.total &&
        applies()) {
        if (const auto result = make(pointer, bytes, device, owner)) {
            if (*result == CUDA_SUCCESS) *pitch = row;
            return *result;
        }
    }
    return driver().cuMemAllocPitch_v2(pointer, pitch, rows.width, rows.height, rows.element);
}

bool is_block(CUdeviceptr pointer) noexcept {
    if (!process::active() || !applies()) return false;
    const auto block = vmm::block_around(pointer);
    return block && block->start == pointer && block->id != 0;
}

CUresult free(CUdeviceptr pointer) {
    const auto block = process::active() && applies() ? vmm::block_around(pointer) : std::nullopt;
    // Of an address within a block, and once it has shut down, the driver says what cuMemFree says.
    if (!block || block->start != pointer || block->id == 0) return driver().cuMemFree_v2(pointer);
    const auto waited = wait_for_work(block->context);
    if (!waited) return driver().cuMemFree_v2(pointer);
    if (*waited != CUDA_SUCCESS) return *waited;
    return as_one_call<&Driver::cuMemFree_v2>([=](const Driver &to) {
        vmm::BlockRemoval removal(pointer);
        return removal ? end(to, removal) : CUDA_ERROR_INVALID_VALUE;  // another thread has freed it
    });
}

void drop_context(CUcontext context) {
    std::vector<vmm::Import> closed;
    as_one_call<&Driver::cuCtxDestroy_v2>([&, context](const Driver &to) {
        for (;;) {
            vmm::BlockRemoval removal(context);
            if (!removal) return CUDA_SUCCESS;
            if (const vmm::Import *import = removal.import()) note_closed(closed, *import);
            // If the driver refuses twice, nothing more can be done: the context and the record are gone.
            if (end(to, removal) != CUDA_SUCCESS && end(to, removal) != CUDA_SUCCESS) removal.commit();
        }
    });
    tell_closed(closed);
}

bool let_use(const Device &user, const Device &device) {
    bool all_granted = true;
    as_one_call<&Driver::cuCtxEnablePeerAccess>([&](const Driver &to) {
        for (auto block = vmm::next_block_on(device, 0); block; block = vmm::next_block_on(device, block->start))
            all_granted &= grant(to, *block, user.ordinal);
        return CUDA_SUCCESS;
    });
    return all_granted;
}

void has_context(const Device &user) {
    // If this fails, the devices may have no way to each other: then only peer access would show it.
    for (const Device &device : devices::all())
        if (&device != &user) let_use(user, device);
}

}  // namespace curb::shim::blocks
