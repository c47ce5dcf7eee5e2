// CUDA arrays. Their size depends on the driver's layout, and the driver reports it only for arrays with deferred
// mapping. So curb creates such a twin, which takes no memory, reads its size, and destroys it.

#include "accounting/arrays.hpp"

#include <algorithm>

#include "admission/admission.hpp"
#include "base/keep_errno.hpp"
#include "contexts/contexts.hpp"
#include "host/process_state.hpp"
#include "policy/values/granule.hpp"
#include "trace/trace.hpp"

namespace curb::shim {
namespace {

// Returns the bytes of one element.
Bytes element_bytes(const CUDA_ARRAY3D_DESCRIPTOR &array) noexcept {
    switch (array.Format) {
        case CU_AD_FORMAT_UNSIGNED_INT8:
        case CU_AD_FORMAT_SIGNED_INT8: return array.NumChannels;
        case CU_AD_FORMAT_UNSIGNED_INT16:
        case CU_AD_FORMAT_SIGNED_INT16:
        case CU_AD_FORMAT_HALF: return Bytes{2} * array.NumChannels;
        case CU_AD_FORMAT_UNSIGNED_INT32:
        case CU_AD_FORMAT_SIGNED_INT32:
        case CU_AD_FORMAT_FLOAT: return Bytes{4} * array.NumChannels;
        default: return 1;  // packed and compressed formats: no less than this
    }
}

// Returns the bytes of all elements: the least that the array can take. Saturates.
Bytes least_bytes(const CUDA_ARRAY3D_DESCRIPTOR &array) noexcept {
    Bytes bytes = element_bytes(array);
    for (const Bytes extent : {array.Width, array.Height, array.Depth})
        if (__builtin_mul_overflow(bytes, std::max<Bytes>(extent, 1), &bytes)) return ~Bytes{0};
    return bytes;
}

// Arrays of up to 1 MiB share granules of 2 MiB; larger ones do not (measured on an H200). The size that the driver
// reports for the twin may be some tiles of 64 KiB larger, so an array of up to one granule may or may not share it.
constexpr Bytes kPerhapsShared = policy::kGranule;

// Of the reserved `worst` bytes, `kept` stay charged: all of them, or `least` if the array may share a granule. Then a
// measurement finds the rest.
struct Size {
    Bytes least;
    Bytes worst;
    Bytes kept;
};

Size size_of(Bytes reported, Bytes least) noexcept {
    const Bytes whole = policy::round_up(std::max(reported, least), policy::kGranule);
    return {least, whole, reported <= kPerhapsShared && least <= kPerhapsShared ? std::min(least, whole) : whole};
}

// Returns the size that the driver reports for a twin. 0 if it cannot (before 11.6, or a format that cannot be mapped).
template <class Create, class Require, class Destroy>
Bytes ask_twin(const CUDA_ARRAY3D_DESCRIPTOR &array, Create create, Require require, Destroy destroy) noexcept {
    const KeepErrno keep_errno;
    const RelaxedCapture relaxed;
    CUDA_ARRAY3D_DESCRIPTOR twin = array;
    twin.Flags |= CUDA_ARRAY3D_DEFERRED_MAPPING;
    CUDA_ARRAY_MEMORY_REQUIREMENTS requirements{};
    auto handle = create(twin);
    if (!handle) handle = create(twin);
    if (!handle) return 0;
    const bool reported = ask_twice([&] { return require(&requirements, handle); }) == CUDA_SUCCESS;
    destroy(handle);
    return reported ? requirements.size : 0;
}

void undo(CUarray array) noexcept { driver().cuArrayDestroy(array); }
void undo_mipmap(CUmipmappedArray array) noexcept { driver().cuMipmappedArrayDestroy(array); }

Bytes ask_array(const CUDA_ARRAY3D_DESCRIPTOR &array, CUdevice device) noexcept {
    return ask_twin(
        array,
        [](const auto &twin) {
            CUarray handle = nullptr;
            return driver().cuArray3DCreate_v2(&handle, &twin) == CUDA_SUCCESS ? handle : nullptr;
        },
        [=](auto *requirements, CUarray handle) {
            return driver().cuArrayGetMemoryRequirements(requirements, handle, device);
        },
        undo);
}

Bytes ask_mipmap(const CUDA_ARRAY3D_DESCRIPTOR &array, unsigned levels, CUdevice device) noexcept {
    return ask_twin(
        array,
        [=](const auto &twin) {
            CUmipmappedArray handle = nullptr;
            return driver().cuMipmappedArrayCreate(&handle, &twin, levels) == CUDA_SUCCESS ? handle : nullptr;
        },
        [=](auto *requirements, CUmipmappedArray handle) {
            return driver().cuMipmappedArrayGetMemoryRequirements(requirements, handle, device);
        },
        undo_mipmap);
}

// Returns the device that will hold the array. nullptr if none, or if the driver will refuse the call.
Device *device_for(const void *handle, const CUDA_ARRAY3D_DESCRIPTOR *array) noexcept {
    constexpr unsigned kMappedLater = CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING;
    return handle && array && array->Width && !(array->Flags & kMappedLater) ? devices::current() : nullptr;
}

template <class Handle, class Call, class Destroy>
CUresult create(Device &device, Size size, Handle *handle, Call call, Destroy destroy) {
    const Request request(device, Kind::arrays, size.least, size.worst, caller_match::Way::none, Reuse::none());
    return charged(request, call, [&](Charge &charge) {
        if (!arrays::add(*handle, {&device, owner_of_memory(), size.kept, size.least})) {
            destroy(*handle);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        charge.keep(size.kept);
        trace::allocated(device, Kind::arrays, reinterpret_cast<std::uint64_t>(*handle), size.least, size.kept);
        if (size.kept != size.worst) devices::measure_before_decision(device);
        return CUDA_SUCCESS;
    });
}

template <class Call>
CUresult create_array(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *description, Call call) {
    Device *device = device_for(array, description);
    if (!device) return call();
    const Bytes reported = ask_array(*description, device->ordinal);
    return create(*device, size_of(reported, least_bytes(*description)), array, call, undo);
}

template <class Call>
CUresult destroy(const void *handle, Call call) {
    if (!process::active()) return call();
    arrays::Removal array = arrays::remove(handle);
    if (!array) return call();
    const Ledger::Operation operation(&array->device->ledger);
    const std::uint64_t moment = trace::moment();
    const CUresult result = call();
    if (result == CUDA_SUCCESS) arrays::credit(handle, array.commit(), moment);
    return result;
}

}  // namespace
}  // namespace curb::shim

using namespace curb::shim;

CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *description) {
    const auto call = to_driver<&Driver::cuArrayCreate_v2>(array, description);
    if (!description) return call();
    const CUDA_ARRAY3D_DESCRIPTOR same{description->Width,  description->Height,      0,
                                       description->Format, description->NumChannels, 0};
    return create_array(array, &same, call);
}

CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *description) {
    return create_array(array, description, to_driver<&Driver::cuArray3DCreate_v2>(array, description));
}

CUresult cuArrayDestroy(CUarray array) { return destroy(array, to_driver<&Driver::cuArrayDestroy>(array)); }

CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *description, unsigned levels) {
    const auto call = to_driver<&Driver::cuMipmappedArrayCreate>(array, description, levels);
    Device *device = device_for(array, description);
    if (!device) return call();
    const Bytes reported = ask_mipmap(*description, levels, device->ordinal);
    return create(*device, size_of(reported, least_bytes(*description)), array, call, undo_mipmap);
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray array) {
    return destroy(array, to_driver<&Driver::cuMipmappedArrayDestroy>(array));
}
