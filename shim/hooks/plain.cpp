// cuMemAlloc and its kin: memory that belongs to a context and is freed by its pointer.

#include "admission.hpp"
#include "allocations.hpp"
#include "contexts.hpp"
#include "free_by_pointer.hpp"
#include "policy/granule.hpp"
#include "pressure.hpp"
#include "trace.hpp"

namespace curb::shim {
namespace {

using allocations::Allocation;
using policy::kGranule;
using policy::round_up;

// Keeps the charge for what the driver handed out; without host memory for the record, undoes the allocation.
// `reusable`: a request for exactly as many bytes can be served by it again.
CUresult record(Charge &charge, Kind kind, CUdeviceptr *pointer, Bytes bytes, bool reusable = false) {
    const Allocation allocation{&charge.device(), owner_of_memory(), bytes, kind, reusable};
    if (const auto taken = allocations::add(*pointer, allocation)) {
        charge.keep(*taken);
        trace::allocated(charge.device(), kind, *pointer, bytes, *taken);
        return CUDA_SUCCESS;
    }
    driver().cuMemFree_v2(*pointer);
    *pointer = 0;
    return CUDA_ERROR_OUT_OF_MEMORY;
}

}  // namespace
}  // namespace curb::shim

using namespace curb::shim;

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes) {
    Device *device = pointer && bytes ? devices::current() : nullptr;
    if (!device) return driver().cuMemAlloc_v2(pointer, bytes);
    if (const CUdeviceptr kept = cache::take(*device, bytes)) {
        *pointer = kept;
        trace::allocated(*device, Kind::plain, kept, bytes, 0, true);
        return CUDA_SUCCESS;
    }
    if (Pressure::of(*device).refuses(*device, bytes, caller_match::Way::runtime)) return CUDA_ERROR_OUT_OF_MEMORY;
    return charged(
        *device, Kind::plain, round_up(bytes, kGranule), [&] { return driver().cuMemAlloc_v2(pointer, bytes); },
        [&](Charge &charge) { return record(charge, Kind::plain, pointer, bytes, true); });
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height, unsigned element) {
    Device *device = pointer && pitch && width && height ? devices::current() : nullptr;
    size_t least = 0;
    // An overflowing product is the driver's to refuse.
    if (!device || __builtin_mul_overflow(width, height, &least))
        return driver().cuMemAllocPitch_v2(pointer, pitch, width, height, element);
    // The driver widens rows to at most the next 512 bytes; what it chose is charged once it is known.
    constexpr size_t kWidestRowPadding = 512;
    size_t worst = 0;
    if (__builtin_mul_overflow(round_up(width, kWidestRowPadding), height, &worst)) worst = ~size_t{0};
    return charged(
        *device, Kind::plain, round_up(worst, kGranule),
        [&] { return driver().cuMemAllocPitch_v2(pointer, pitch, width, height, element); },
        [&](Charge &charge) { return record(charge, Kind::plain, pointer, *pitch * height); });
}

CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned flags) {
    Device *device = pointer && bytes ? devices::current() : nullptr;
    if (!device) return driver().cuMemAllocManaged(pointer, bytes, flags);
    return charged(
        *device, Kind::managed, round_up(bytes, kGranule),
        [&] { return driver().cuMemAllocManaged(pointer, bytes, flags); },
        [&](Charge &charge) { return record(charge, Kind::managed, pointer, bytes); });
}

CUresult cuMemFree_v2(CUdeviceptr pointer) {
    if (cache::keep(pointer)) return CUDA_SUCCESS;
    return free_by_pointer(pointer, [&] { return driver().cuMemFree_v2(pointer); });
}
