// cuMemAlloc, cuMemAllocPitch, cuMemAllocManaged and cuMemFree.

#include "accounting/allocations.hpp"
#include "admission/admission.hpp"
#include "blocks/blocks.hpp"
#include "contexts/contexts.hpp"
#include "hooks/free_by_pointer.hpp"
#include "policy/values/granule.hpp"
#include "trace/trace.hpp"

namespace curb::shim {
namespace {

using allocations::Allocation;
using caller_match::Way;
using policy::kGranule;
using policy::round_up;

// Serves the request of `owner` by `call`, which stores the address in `pointer`. `bytes()` returns the bytes that the
// driver handed out.
template <class Call, class Allocated>
CUresult allocate(const Request &request, CUcontext owner, CUdeviceptr *pointer, Call call, Allocated bytes) {
    return charged(request, call, [&](Charge &charge) {
        Device &device = request.device;
        const Allocation allocation{&device, owner, bytes(), request.kind, request.reuse.pointer() != nullptr};
        if (const auto taken = allocations::add(*pointer, allocation)) {
            charge.keep(*taken);
            trace::allocated(device, request.kind, *pointer, allocation.bytes, *taken);
            return CUDA_SUCCESS;
        }
        // Without host memory for the record, undo the allocation.
        blocks::free(*pointer);
        *pointer = 0;
        return CUDA_ERROR_OUT_OF_MEMORY;
    });
}

}  // namespace
}  // namespace curb::shim

using namespace curb::shim;

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes) {
    const auto [device, owner] = pointer && bytes ? memory_owner() : MemoryOwner{};
    if (!device) return driver().cuMemAlloc_v2(pointer, bytes);
    const Request request(*device, Kind::plain, bytes, round_up(bytes, kGranule), Way::runtime,
                          Reuse::into(pointer, owner));
    const auto make = [&, on = device, context = owner] { return blocks::allocate(pointer, bytes, *on, context); };
    return allocate(request, owner, pointer, make, [&] { return bytes; });
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height, unsigned element) {
    const auto [device, owner] = pointer && pitch && width && height ? memory_owner() : MemoryOwner{};
    size_t least = 0;
    // If the product overflows, the driver refuses the call.
    if (!device || __builtin_mul_overflow(width, height, &least))
        return driver().cuMemAllocPitch_v2(pointer, pitch, width, height, element);
    // The driver pads rows to at most the next 512 bytes; `*pitch` gives the real size afterwards.
    constexpr size_t kWidestRowPadding = 512;
    size_t worst = 0;
    if (__builtin_mul_overflow(round_up(width, kWidestRowPadding), height, &worst)) worst = ~size_t{0};
    const Request request(*device, Kind::plain, least, round_up(worst, kGranule), Way::none, Reuse::none());
    const auto make = [&, on = device, context = owner] {
        return blocks::allocate_pitch(pointer, pitch, {width, height, element}, *on, context);
    };
    return allocate(request, owner, pointer, make, [&] { return *pitch * height; });
}

CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned flags) {
    const auto [device, owner] = pointer && bytes ? memory_owner() : MemoryOwner{};
    if (!device) return driver().cuMemAllocManaged(pointer, bytes, flags);
    const Request request(*device, Kind::managed, bytes, round_up(bytes, kGranule), Way::none, Reuse::none());
    return allocate(request, owner, pointer, to_driver<&Driver::cuMemAllocManaged>(pointer, bytes, flags),
                    [&] { return bytes; });
}

CUresult cuMemFree_v2(CUdeviceptr pointer) {
    if (cache::keep(pointer)) return CUDA_SUCCESS;
    return free_by_pointer(pointer, [=] { return blocks::free(pointer); });
}
