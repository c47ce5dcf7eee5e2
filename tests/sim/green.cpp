// Green contexts: some of a device's multiprocessors, behind a context handle of their own. What is allocated there
// belongs to the device's primary context (docs/results/driver.md), and so do, here, its streams and modules.
#include <algorithm>

#include "driver.hpp"
#include "identity.hpp"

namespace curb::sim {

namespace {

constexpr uint64_t kGreenBytes = 6 * kMiB;  // of the primary context, which keeps them (docs/results/driver.md)
constexpr unsigned kSmallestGroup = 8;      // compute capability 9.0

struct Description {  // which multiprocessors makes no difference here
    CUdevResourceDesc handle = nullptr;
};

Registry<CUdevResourceDesc, Description> &descriptions() {
    static auto &all = *new Registry<CUdevResourceDesc, Description>;
    return all;
}

CUdevResource multiprocessors(unsigned count) {
    CUdevResource resource{};
    resource.type = CU_DEV_RESOURCE_TYPE_SM;
    resource.sm = {.smCount = count, .minSmPartitionSize = kSmallestGroup, .smCoscheduledAlignment = kSmallestGroup};
    return resource;
}

}  // namespace

SIM_CU(cuDeviceGetDevResource, (CUdevice device, CUdevResource *resource, CUdevResourceType type),
       (device, resource, type)) {
    Device *found = nullptr;
    if (const CUresult error = find_device(device, &found)) return error;
    if (!resource || type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_VALUE;
    *resource = multiprocessors(kMultiprocessors);
    return CUDA_SUCCESS;
}

// `groups` comes in as the room in `result` and goes out as how many there are; without `result`, as how many there
// could be.
SIM_CU(cuDevSmResourceSplitByCount,
       (CUdevResource * result, unsigned *groups, const CUdevResource *input, CUdevResource *remaining,
        [[maybe_unused]] unsigned flags, unsigned least),
       (result, groups, input, remaining, flags, least)) {
    if (!groups || !input || input->type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_VALUE;
    const auto size = static_cast<unsigned>(round_up(std::max(least, 1u), kSmallestGroup));
    const unsigned possible = input->sm.smCount / size;
    if (!possible) return CUDA_ERROR_INVALID_VALUE;
    *groups = result ? std::min(*groups, possible) : possible;
    if (!result) return CUDA_SUCCESS;
    for (unsigned group = 0; group < *groups; ++group) result[group] = multiprocessors(size);
    if (remaining) *remaining = multiprocessors(input->sm.smCount - *groups * size);
    return CUDA_SUCCESS;
}

SIM_CU(cuDevResourceGenerateDesc, (CUdevResourceDesc * description, CUdevResource *resources, unsigned count),
       (description, resources, count)) {
    if (!description || !resources || !count) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; ++i)
        if (resources[i].type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_VALUE;
    *description = descriptions().add(std::make_unique<Description>())->handle;
    return CUDA_SUCCESS;
}

// Retains the primary context, which its end releases (cuda.h).
SIM_CU(cuGreenCtxCreate, (CUgreenCtx * green, CUdevResourceDesc description, CUdevice device, unsigned flags),
       (green, description, device, flags)) {
    if (!green || flags != CU_GREEN_CTX_DEFAULT_STREAM) return CUDA_ERROR_INVALID_VALUE;
    if (!descriptions().find(description)) return CUDA_ERROR_INVALID_VALUE;
    Device *found = nullptr;
    if (const CUresult error = find_device(device, &found)) return error;
    Context *primary = nullptr;
    if (const CUresult error = retain_primary(*found, &primary)) return error;
    if (const CUresult error = charge(device, Use::context, kGreenBytes)) {
        release_primary(*found);
        return error;
    }
    primary->overhead += kGreenBytes;
    *green = driver().greens.add(std::make_unique<GreenContext>(device))->handle;
    return CUDA_SUCCESS;
}

SIM_CU(cuGreenCtxDestroy, (CUgreenCtx handle), (handle)) {
    const std::unique_ptr<GreenContext> green = driver().greens.release(handle);
    if (!green) return CUDA_ERROR_INVALID_CONTEXT;
    return release_primary(device_at(green->device));
}

SIM_CU(cuCtxFromGreenCtx, (CUcontext * context, CUgreenCtx handle), (context, handle)) {
    const GreenContext *green = driver().greens.find(handle);
    if (!green) return CUDA_ERROR_INVALID_CONTEXT;
    if (!context) return CUDA_ERROR_INVALID_VALUE;
    *context = green->context;
    return CUDA_SUCCESS;
}

}  // namespace curb::sim
