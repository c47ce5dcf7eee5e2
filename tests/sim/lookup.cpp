// cuGetProcAddress: from a name, a version and a choice of default stream to an address. The address is that of the
// exact export, as measured on the real driver (docs/results/driver.md).
#include <algorithm>
#include <string_view>

#include "driver.hpp"
#include "version.hpp"

namespace curb::sim {

namespace {

struct Export {
    std::string_view name;
    void *address;
    void *per_thread;
};

// Every export that cuda_functions.def declares. What has no body does not link.
const Export kExports[] = {
#define CURB_CU(name, types) {#name, reinterpret_cast<void *>(&::name), nullptr},
#define CURB_CU_STREAM(name, types) \
    {#name, reinterpret_cast<void *>(&::name), reinterpret_cast<void *>(&::name##_ptsz)},
#define CURB_CU_BLOCKING(name, types) \
    {#name, reinterpret_cast<void *>(&::name), reinterpret_cast<void *>(&::name##_ptds)},
#include "cuda_functions.def"
#undef CURB_CU
#undef CURB_CU_STREAM
#undef CURB_CU_BLOCKING
};

// From which version of the API a name means which export. No export: from there on the name means one with other
// parameters, which is not simulated.
struct Row {
    std::string_view name;
    int since;
    const char *meaning;
};
constexpr Row kRows[] = {
#define SIM_SINCE(version, name, export) {name, version, #export},
#define SIM_ALSO SIM_SINCE
#define SIM_OTHER(version, name) {name, version, nullptr},
#include "exports.def"
#undef SIM_SINCE
#undef SIM_ALSO
#undef SIM_OTHER
};

constexpr bool has_row(std::string_view name) {
    return std::any_of(std::begin(kRows), std::end(kRows),
                       [=](const Row &row) { return row.meaning && row.meaning == name; });
}
#define CURB_CU(name, types) static_assert(has_row(#name), "an export that cuGetProcAddress does not know");
#define CURB_CU_STREAM CURB_CU
#define CURB_CU_BLOCKING CURB_CU
#include "cuda_functions.def"
#undef CURB_CU
#undef CURB_CU_STREAM
#undef CURB_CU_BLOCKING

constexpr int kFirstPerThread = 7000;  // per-thread default streams came with CUDA 7.0

CUdriverProcAddressQueryResult look_up(std::string_view name, int version, bool per_thread, void **address) {
    const Row *best = nullptr;
    bool known = false;
    for (const Row &row : kRows) {
        if (row.name != name || row.since > kCudaVersion) continue;  // that export came after this driver
        known = true;
        if (row.since <= version && (!best || row.since > best->since)) best = &row;
    }
    if (!known) return CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    if (!best) return CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
    if (!best->meaning) return CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    const Export &found = *std::find_if(std::begin(kExports), std::end(kExports),
                                        [=](const Export &one) { return one.name == best->meaning; });
    *address = per_thread && found.per_thread && version >= kFirstPerThread ? found.per_thread : found.address;
    return CU_GET_PROC_ADDRESS_SUCCESS;
}

CUresult answer(const char *name, void **address, int version, uint64_t flags, CUdriverProcAddressQueryResult *status) {
    constexpr uint64_t kKnown = CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    if (!name || !address || flags & ~kKnown) return CUDA_ERROR_INVALID_VALUE;
    *address = nullptr;
    const auto found = look_up(name, version, flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, address);
    if (status) *status = found;
    return CUDA_SUCCESS;  // with a null address when nothing was found, asked for the status or not (measured on an
                          // H200)
}

}  // namespace

SIM_CU(cuGetProcAddress_v2,
       (const char *name, void **address, int version, uint64_t flags, CUdriverProcAddressQueryResult *status),
       (name, address, version, flags, status)) {
    return answer(name, address, version, flags, status);
}

SIM_CU(cuGetProcAddress, (const char *name, void **address, int version, uint64_t flags),
       (name, address, version, flags)) {
    return answer(name, address, version, flags, nullptr);
}

// The private tables of real runtimes are not imitated.
SIM_CU(cuGetExportTable, (const void **table, const CUuuid *id), (table, id)) {
    return table && id ? CUDA_ERROR_NOT_FOUND : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace curb::sim
