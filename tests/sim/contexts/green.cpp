// Green contexts: some of a device's multiprocessors, behind a context handle of their own. Memory allocated there
// belongs to the device's primary context (docs/results/driver.md). So do, in this model, its streams and modules.
#include <algorithm>

#include "driver.hpp"
#include "identity.hpp"

namespace curb::sim {

namespace {

constexpr uint64_t kGreenBytes = 6 * kMiB;  // of the primary context, which keeps them (docs/results/driver.md)
constexpr unsigned kSmallestGroup = 8;      // compute capability 9.0

struct Description {  // does not keep which multiprocessors
    static constexpr CUresult kUnknown = CUDA_ERROR_INVALID_VALUE;
    CUdevResourceDesc handle = nullptr;
};

CUdevResource multiprocessors(unsigned count) {
    CUdevResource resource{};
    resource.type = CU_DEV_RESOURCE_TYPE_SM;
    resource.sm = {.smCount = count, .minSmPartitionSize = kSmallestGroup, .smCoscheduledAlignment = kSmallestGroup};
    return resource;
}

}  // namespace

SIM_CU(12040, cuDeviceGetDevResource, (CUdevice device, CUdevResource *resource, CUdevResourceType type),
       (device, resource, type)) {
    find_device(device);
    if (!resource || type != CU_DEV_RESOURCE_TYPE_SM) throw CUDA_ERROR_INVALID_VALUE;
    *resource = multiprocessors(kMultiprocessors);
}

// `groups` comes in as the capacity of `result` and goes out as the number of groups made; without `result`, of those
// possible.
SIM_CU(12040, cuDevSmResourceSplitByCount,
       (CUdevResource * result, unsigned *groups, const CUdevResource *input, CUdevResource *remaining, unsigned flags,
        unsigned least),
       (result, groups, input, remaining, flags, least)) {
    if (!groups || !input || input->type != CU_DEV_RESOURCE_TYPE_SM) throw CUDA_ERROR_INVALID_VALUE;
    const auto size = static_cast<unsigned>(round_up(std::max(least, 1u), kSmallestGroup));
    const unsigned possible = input->sm.smCount / size;
    if (!possible) throw CUDA_ERROR_INVALID_VALUE;
    *groups = result ? std::min(*groups, possible) : possible;
    if (!result) return;
    for (unsigned group = 0; group < *groups; ++group) result[group] = multiprocessors(size);
    if (remaining) *remaining = multiprocessors(input->sm.smCount - *groups * size);
}

SIM_CU(12040, cuDevResourceGenerateDesc, (CUdevResourceDesc * description, CUdevResource *resources, unsigned count),
       (description, resources, count)) {
    if (!description || !resources || !count) throw CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; ++i)
        if (resources[i].type != CU_DEV_RESOURCE_TYPE_SM) throw CUDA_ERROR_INVALID_VALUE;
    *description = all<Description>().add(std::make_unique<Description>())->handle;
}

// Retains the primary context until the green one is destroyed (cuda.h).
SIM_CU(12040, cuGreenCtxCreate, (CUgreenCtx * green, CUdevResourceDesc description, CUdevice device, unsigned flags),
       (green, description, device, flags)) {
    if (!green || flags != CU_GREEN_CTX_DEFAULT_STREAM) throw CUDA_ERROR_INVALID_VALUE;
    all<Description>().at(description);
    Device *found = find_device(device);
    Context *primary = retain_primary(*found);
    if (const CUresult error = result_of([=] { charge(device, Use::context, kGreenBytes); })) {
        release_primary(*found);
        throw error;
    }
    primary->overhead += kGreenBytes;
    *green = all<GreenContext>().add(std::make_unique<GreenContext>(device))->handle;
}

SIM_CU(12040, cuGreenCtxDestroy, (CUgreenCtx handle), (handle)) {
    const std::unique_ptr<GreenContext> green = all<GreenContext>().release(handle);
    release_primary(device_at(green->device));
}

SIM_CU(12040, cuCtxFromGreenCtx, (CUcontext * context, CUgreenCtx handle), (context, handle)) {
    const GreenContext *green = all<GreenContext>().at(handle);
    if (!context) throw CUDA_ERROR_INVALID_VALUE;
    *context = green->context;
}

}  // namespace curb::sim
