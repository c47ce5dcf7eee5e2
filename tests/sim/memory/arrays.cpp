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

    static constexpr CUresult kUnknown = CUDA_ERROR_INVALID_HANDLE;
    Handle handle = nullptr;
    CUcontext context;
    CUDA_ARRAY3D_DESCRIPTOR descriptor;
    CUdeviceptr memory = 0;  // 0: sparse or deferred, so none of its own
    uint64_t bytes = 0;
    std::map<std::string, CUmemGenericAllocationHandle> mapped;  // by cuMemMapArrayAsync; key: the part, as bytes
};
using Array = Texture<CUarray>;
using Mipmap = Texture<CUmipmappedArray>;

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

void check(const CUDA_ARRAY3D_DESCRIPTOR &descriptor) {
    constexpr size_t kLargest = 1 << 17;  // 131072 wide on this architecture; each extent, to keep the product small
    const unsigned channels = descriptor.NumChannels;
    if (!descriptor.Width || !element_bytes(descriptor.Format) || (channels != 1 && channels != 2 && channels != 4))
        throw CUDA_ERROR_INVALID_VALUE;
    if (descriptor.Width > kLargest || descriptor.Height > kLargest || descriptor.Depth > (1 << 14))
        throw CUDA_ERROR_INVALID_VALUE;
    constexpr unsigned kWithoutMemory = CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING;
    if ((descriptor.Flags & kWithoutMemory) == kWithoutMemory) throw CUDA_ERROR_INVALID_VALUE;
}

bool takes_no_memory(const CUDA_ARRAY3D_DESCRIPTOR &descriptor) {
    return descriptor.Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING);
}

// The driver stores contents in tiles of 64 bytes by 8 rows, and tiles in blocks of up to 16: vertical in two
// dimensions, in depth in three. This formula gives every size that the driver reports for deferred arrays
// (docs/results/driver.md).
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

// Creates an array, or a mipmapped array of `levels` levels.
template <class Object>
typename Registry<Object>::Handle create(const CUDA_ARRAY3D_DESCRIPTOR &descriptor, unsigned levels) {
    Context *context = current_context();
    check(descriptor);
    const size_t longest = std::max({descriptor.Width, descriptor.Height, descriptor.Depth});
    auto made = std::make_unique<Object>(context->handle, descriptor);
    for (unsigned level = 0; level < levels && (longest >> level); ++level)
        made->bytes += level_bytes(descriptor, level);
    refuse_during_capture();
    if (!takes_no_memory(descriptor)) made->memory = context->arrays.take(made->bytes);
    return all<Object>().add(std::move(made))->handle;
}

template <class Object>
void destroy(typename Registry<Object>::Handle handle) {
    const Object *object = all<Object>().at(handle);
    refuse_during_capture();
    if (object->memory) all<Context>().find(object->context)->arrays.give(object->memory);
    all<Object>().release(handle);
}

// "If the array is not allocated with CUDA_ARRAY3D_DEFERRED_MAPPING, CUDA_ERROR_INVALID_VALUE" (cuda.h).
template <class Object>
void requirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, typename Registry<Object>::Handle handle, CUdevice device) {
    find_device(device);
    const Object *object = all<Object>().at(handle);
    if (!out || !(object->descriptor.Flags & CUDA_ARRAY3D_DEFERRED_MAPPING)) throw CUDA_ERROR_INVALID_VALUE;
    *out = {.size = round_up(object->bytes, kArrayAlignment), .alignment = kArrayAlignment, .reserved = {}};
}

// The mapping keeps the memory when its handle is released.
template <class Object>
void map_part(Object *object, const CUarrayMapInfo &info) {
    if (!takes_no_memory(object->descriptor)) throw CUDA_ERROR_INVALID_VALUE;
    std::string part(reinterpret_cast<const char *>(&info.subresource), sizeof info.subresource);
    part += static_cast<char>(info.subresourceType);
    if (const auto before = object->mapped.find(part); before != object->mapped.end()) {
        end_mapping(before->second);
        object->mapped.erase(before);
    }
    if (info.memOperationType == CU_MEM_OPERATION_TYPE_UNMAP) return;
    const CUmemGenericAllocationHandle memory = info.memHandle.memHandle;
    add_mapping(memory);
    object->mapped[part] = memory;
}

}  // namespace

void check_array(CUarray handle) { all<Array>().at(handle); }

void forget_arrays_of(CUcontext context) {
    all<Array>().remove_if([=](const Array &array) { return array.context == context; });
    all<Mipmap>().remove_if([=](const Mipmap &mipmap) { return mipmap.context == context; });
}

SIM_CU(3020, cuArrayCreate_v2, (CUarray * array, const CUDA_ARRAY_DESCRIPTOR *descriptor), (array, descriptor)) {
    if (!array || !descriptor) throw CUDA_ERROR_INVALID_VALUE;
    *array = create<Array>({.Width = descriptor->Width,
                            .Height = descriptor->Height,
                            .Depth = 0,
                            .Format = descriptor->Format,
                            .NumChannels = descriptor->NumChannels,
                            .Flags = 0},
                           1);
}

SIM_CU(3020, cuArray3DCreate_v2, (CUarray * array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor), (array, descriptor)) {
    if (!array || !descriptor) throw CUDA_ERROR_INVALID_VALUE;
    *array = create<Array>(*descriptor, 1);
}

SIM_CU(2000, cuArrayDestroy, (CUarray array), (array)) { destroy<Array>(array); }

SIM_CU(3020, cuArrayGetDescriptor_v2, (CUDA_ARRAY_DESCRIPTOR * descriptor, CUarray handle), (descriptor, handle)) {
    const Array *array = all<Array>().at(handle);
    if (!descriptor) throw CUDA_ERROR_INVALID_VALUE;
    const CUDA_ARRAY3D_DESCRIPTOR &from = array->descriptor;
    *descriptor = {from.Width, from.Height, from.Format, from.NumChannels};
}

SIM_CU(3020, cuArray3DGetDescriptor_v2, (CUDA_ARRAY3D_DESCRIPTOR * descriptor, CUarray handle), (descriptor, handle)) {
    const Array *array = all<Array>().at(handle);
    if (!descriptor) throw CUDA_ERROR_INVALID_VALUE;
    *descriptor = array->descriptor;
}

SIM_CU(11060, cuArrayGetMemoryRequirements, (CUDA_ARRAY_MEMORY_REQUIREMENTS * out, CUarray array, CUdevice device),
       (out, array, device)) {
    requirements<Array>(out, array, device);
}

SIM_CU(5000, cuMipmappedArrayCreate,
       (CUmipmappedArray * out, const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned levels),
       (out, descriptor, levels)) {
    if (!out || !descriptor || !levels) throw CUDA_ERROR_INVALID_VALUE;
    *out = create<Mipmap>(*descriptor, levels);
}

SIM_CU(5000, cuMipmappedArrayDestroy, (CUmipmappedArray mipmap), (mipmap)) { destroy<Mipmap>(mipmap); }

SIM_CU_STREAM(11010, cuMemMapArrayAsync, (CUarrayMapInfo * infos, unsigned count, CUstream handle),
              (infos, count, handle)) {
    find_stream(handle);
    if (!infos || !count) throw CUDA_ERROR_INVALID_VALUE;
    refuse_during_capture();
    for (unsigned i = 0; i < count; ++i) {
        const CUarrayMapInfo &info = infos[i];
        if (info.resourceType == CU_RESOURCE_TYPE_ARRAY)
            map_part(all<Array>().at(info.resource.array), info);
        else
            map_part(all<Mipmap>().at(info.resource.mipmap), info);
    }
}

SIM_CU(11060, cuMipmappedArrayGetMemoryRequirements,
       (CUDA_ARRAY_MEMORY_REQUIREMENTS * out, CUmipmappedArray mipmap, CUdevice device), (out, mipmap, device)) {
    requirements<Mipmap>(out, mipmap, device);
}

}  // namespace curb::sim
