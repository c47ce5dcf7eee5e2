#include "arrays.hpp"

#include <algorithm>
#include <bit>
#include <string>

#include "driver.hpp"

namespace curb::sim {

namespace {

constexpr uint64_t kArrayAlignment = 64 * kKiB;

template <class Handle>
struct Texture {
    Texture(CUcontext its_context, const CUDA_ARRAY3D_DESCRIPTOR &its_descriptor)
        : context(its_context), descriptor(its_descriptor) {}
    Texture(const Texture &) = delete;
    Texture &operator=(const Texture &) = delete;
    ~Texture() {
        for (const auto &[part, allocation] : mapped) end_mapping(allocation);
    }

    Handle handle = nullptr;
    CUcontext context;
    CUDA_ARRAY3D_DESCRIPTOR descriptor;
    CUdeviceptr memory = 0;  // 0: sparse or mapped later, so none of its own
    uint64_t bytes = 0;
    std::map<std::string, CUmemGenericAllocationHandle> mapped;  // by cuMemMapArrayAsync: which part of it, as bytes
};
using Array = Texture<CUarray>;
using Mipmap = Texture<CUmipmappedArray>;

Registry<CUarray, Array> &arrays() {
    static auto &all = *new Registry<CUarray, Array>;
    return all;
}
Registry<CUmipmappedArray, Mipmap> &mipmaps() {
    static auto &all = *new Registry<CUmipmappedArray, Mipmap>;
    return all;
}

uint64_t element_bytes(CUarray_format format) {
    switch (format) {
        case CU_AD_FORMAT_UNSIGNED_INT8:
        case CU_AD_FORMAT_SIGNED_INT8: return 1;
        case CU_AD_FORMAT_UNSIGNED_INT16:
        case CU_AD_FORMAT_SIGNED_INT16:
        case CU_AD_FORMAT_HALF: return 2;
        case CU_AD_FORMAT_UNSIGNED_INT32:
        case CU_AD_FORMAT_SIGNED_INT32:
        case CU_AD_FORMAT_FLOAT: return 4;
    }
    return 0;
}

CUresult check(const CUDA_ARRAY3D_DESCRIPTOR &descriptor) {
    constexpr size_t kLargest = 1 << 17;  // 131072 wide on this architecture; each extent, to keep the product small
    const unsigned channels = descriptor.NumChannels;
    if (!descriptor.Width || !element_bytes(descriptor.Format) || (channels != 1 && channels != 2 && channels != 4))
        return CUDA_ERROR_INVALID_VALUE;
    if (descriptor.Width > kLargest || descriptor.Height > kLargest || descriptor.Depth > (1 << 14))
        return CUDA_ERROR_INVALID_VALUE;
    constexpr unsigned kWithoutMemory = CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING;
    return (descriptor.Flags & kWithoutMemory) == kWithoutMemory ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

bool takes_no_memory(const CUDA_ARRAY3D_DESCRIPTOR &descriptor) {
    return descriptor.Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING);
}

// Contents lie in tiles of 64 bytes by 8 rows, and these in blocks of up to 16, upwards in two dimensions and inwards
// in three. Found by fitting what the driver tells of deferred arrays (docs/results/driver.md); it holds for all of
// them.
uint64_t level_bytes(const CUDA_ARRAY3D_DESCRIPTOR &descriptor, unsigned level) {
    constexpr uint64_t kTileWidth = 64, kTileHeight = 8;
    const auto at = [=](size_t extent) { return std::max<uint64_t>(extent >> level, 1); };
    const auto in_blocks = [](uint64_t tiles) { return round_up(tiles, std::min(std::bit_ceil(tiles), uint64_t{16})); };
    const bool layered = descriptor.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP);
    const uint64_t depth = layered ? 1 : at(descriptor.Depth);
    const uint64_t layers = layered ? std::max<uint64_t>(descriptor.Depth, 1) : 1;
    const uint64_t row = at(descriptor.Width) * descriptor.NumChannels * element_bytes(descriptor.Format);
    const uint64_t across = round_up(row, kTileWidth) / kTileWidth;
    const uint64_t up = round_up(at(descriptor.Height), kTileHeight) / kTileHeight;
    const uint64_t tiles = across * (depth > 1 ? up * in_blocks(depth) : in_blocks(up));
    return tiles * kTileWidth * kTileHeight * layers;
}

CUresult take(Context &context, const CUDA_ARRAY3D_DESCRIPTOR &descriptor, uint64_t bytes, CUdeviceptr *memory) {
    if (const CUresult error = refuse_during_capture()) return error;
    return takes_no_memory(descriptor) ? CUDA_SUCCESS : context.arrays.take(bytes, memory);
}

CUresult create(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR &descriptor) {
    Context *context = nullptr;
    if (const CUresult error = current_context(&context)) return error;
    if (const CUresult error = check(descriptor)) return error;
    auto made = std::make_unique<Array>(context->handle, descriptor);
    made->bytes = level_bytes(descriptor, 0);
    if (const CUresult error = take(*context, descriptor, made->bytes, &made->memory)) return error;
    *out = arrays().add(std::move(made))->handle;
    return CUDA_SUCCESS;
}

// Both kinds end alike.
template <class Handle, class Object>
CUresult destroy(Registry<Handle, Object> &all, Handle handle) {
    const Object *object = all.find(handle);
    if (!object) return CUDA_ERROR_INVALID_HANDLE;
    if (const CUresult error = refuse_during_capture()) return error;
    if (object->memory) driver().contexts.find(object->context)->arrays.give(object->memory);
    all.remove(handle);
    return CUDA_SUCCESS;
}

// "If the array is not allocated with CUDA_ARRAY3D_DEFERRED_MAPPING, CUDA_ERROR_INVALID_VALUE" (cuda.h).
template <class Object>
CUresult requirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, const Object *object, CUdevice device) {
    Device *found = nullptr;
    if (const CUresult error = find_device(device, &found)) return error;
    if (!object) return CUDA_ERROR_INVALID_HANDLE;
    if (!out || !(object->descriptor.Flags & CUDA_ARRAY3D_DEFERRED_MAPPING)) return CUDA_ERROR_INVALID_VALUE;
    *out = {.size = round_up(object->bytes, kArrayAlignment), .alignment = kArrayAlignment, .reserved = {}};
    return CUDA_SUCCESS;
}

// The memory stays as long as it is mapped, whether its handle is released or not.
template <class Object>
CUresult map_part(Object *object, const CUarrayMapInfo &info) {
    if (!object) return CUDA_ERROR_INVALID_HANDLE;
    if (!takes_no_memory(object->descriptor)) return CUDA_ERROR_INVALID_VALUE;
    std::string part(reinterpret_cast<const char *>(&info.subresource), sizeof info.subresource);
    part += static_cast<char>(info.subresourceType);
    if (const auto before = object->mapped.find(part); before != object->mapped.end()) {
        end_mapping(before->second);
        object->mapped.erase(before);
    }
    if (info.memOperationType == CU_MEM_OPERATION_TYPE_UNMAP) return CUDA_SUCCESS;
    const CUmemGenericAllocationHandle memory = info.memHandle.memHandle;
    if (const CUresult error = add_mapping(memory)) return error;
    object->mapped[part] = memory;
    return CUDA_SUCCESS;
}

}  // namespace

void forget_arrays_of(CUcontext context) {
    arrays().remove_if([=](const Array &array) { return array.context == context; });
    mipmaps().remove_if([=](const Mipmap &mipmap) { return mipmap.context == context; });
}

SIM_CU(cuArrayCreate_v2, (CUarray * array, const CUDA_ARRAY_DESCRIPTOR *descriptor), (array, descriptor)) {
    if (!array || !descriptor) return CUDA_ERROR_INVALID_VALUE;
    return create(array, {.Width = descriptor->Width,
                          .Height = descriptor->Height,
                          .Depth = 0,
                          .Format = descriptor->Format,
                          .NumChannels = descriptor->NumChannels,
                          .Flags = 0});
}

SIM_CU(cuArray3DCreate_v2, (CUarray * array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor), (array, descriptor)) {
    if (!array || !descriptor) return CUDA_ERROR_INVALID_VALUE;
    return create(array, *descriptor);
}

SIM_CU(cuArrayDestroy, (CUarray array), (array)) { return destroy(arrays(), array); }

SIM_CU(cuArrayGetDescriptor_v2, (CUDA_ARRAY_DESCRIPTOR * descriptor, CUarray handle), (descriptor, handle)) {
    const Array *array = arrays().find(handle);
    if (!array) return CUDA_ERROR_INVALID_HANDLE;
    if (!descriptor) return CUDA_ERROR_INVALID_VALUE;
    const CUDA_ARRAY3D_DESCRIPTOR &from = array->descriptor;
    *descriptor = {from.Width, from.Height, from.Format, from.NumChannels};
    return CUDA_SUCCESS;
}

SIM_CU(cuArray3DGetDescriptor_v2, (CUDA_ARRAY3D_DESCRIPTOR * descriptor, CUarray handle), (descriptor, handle)) {
    const Array *array = arrays().find(handle);
    if (!array) return CUDA_ERROR_INVALID_HANDLE;
    if (!descriptor) return CUDA_ERROR_INVALID_VALUE;
    *descriptor = array->descriptor;
    return CUDA_SUCCESS;
}

SIM_CU(cuArrayGetMemoryRequirements, (CUDA_ARRAY_MEMORY_REQUIREMENTS * out, CUarray array, CUdevice device),
       (out, array, device)) {
    return requirements(out, arrays().find(array), device);
}

SIM_CU(cuMipmappedArrayCreate, (CUmipmappedArray * out, const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned levels),
       (out, descriptor, levels)) {
    if (!out || !descriptor || !levels) return CUDA_ERROR_INVALID_VALUE;
    Context *context = nullptr;
    if (const CUresult error = current_context(&context)) return error;
    if (const CUresult error = check(*descriptor)) return error;
    const size_t longest = std::max({descriptor->Width, descriptor->Height, descriptor->Depth});
    auto made = std::make_unique<Mipmap>(context->handle, *descriptor);
    for (unsigned level = 0; level < levels && (longest >> level); ++level)
        made->bytes += level_bytes(*descriptor, level);
    if (const CUresult error = take(*context, *descriptor, made->bytes, &made->memory)) return error;
    *out = mipmaps().add(std::move(made))->handle;
    return CUDA_SUCCESS;
}

SIM_CU(cuMipmappedArrayDestroy, (CUmipmappedArray mipmap), (mipmap)) { return destroy(mipmaps(), mipmap); }

SIM_CU_STREAM(cuMemMapArrayAsync, (CUarrayMapInfo * infos, unsigned count, CUstream handle), (infos, count, handle)) {
    Stream *stream = nullptr;
    if (const CUresult error = find_stream(handle, &stream)) return error;
    if (!infos || !count) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult error = refuse_during_capture()) return error;
    for (unsigned i = 0; i < count; ++i) {
        const CUarrayMapInfo &info = infos[i];
        const CUresult error = info.resourceType == CU_RESOURCE_TYPE_ARRAY
                                   ? map_part(arrays().find(info.resource.array), info)
                                   : map_part(mipmaps().find(info.resource.mipmap), info);
        if (error) return error;
    }
    return CUDA_SUCCESS;
}

SIM_CU(cuMipmappedArrayGetMemoryRequirements,
       (CUDA_ARRAY_MEMORY_REQUIREMENTS * out, CUmipmappedArray mipmap, CUdevice device), (out, mipmap, device)) {
    return requirements(out, mipmaps().find(mipmap), device);
}

}  // namespace curb::sim
