// cuGetProcAddress: a name, a version and a choice of default stream give the address of the exact export, as measured
// on the real driver (docs/results/driver.md).
#include <algorithm>
#include <string>
#include <string_view>

#include "driver.hpp"
#include "version.hpp"

namespace curb::sim {

namespace {

struct Export {
    Entry *entry;
    void *address;
};

// An export without a body does not link.
const Export kExports[] = {
#define CURB_CU(name, types) {&entries::name, reinterpret_cast<void *>(&::name)},
#define CURB_CU_STREAM(name, types) CURB_CU(name, types) CURB_CU(name##_ptsz, types)
#define CURB_CU_BLOCKING(name, types) CURB_CU(name, types) CURB_CU(name##_ptds, types)
#include "abi/cuda_functions.def"
#undef CURB_CU
#undef CURB_CU_STREAM
#undef CURB_CU_BLOCKING
};

// Names that mean another export from a version on. Empty: one that is not simulated.
constexpr struct {
    std::string_view name;
    int since;
    std::string_view meaning;
} kOthers[] = {{"cuGraphInstantiate", 12000, "cuGraphInstantiateWithFlags"}, {"cuStreamGetCaptureInfo", 12030, ""}};

// "cuMemAlloc_v2" -> "cuMemAlloc"
std::string_view without_version(std::string_view name) {
    const bool has_version = name.size() > 3 && name.substr(name.size() - 3, 2) == "_v";
    return has_version ? name.substr(0, name.size() - 3) : name;
}

// Returns null if there is no export of that name.
const Export *find_export(std::string_view name) {
    const auto *const found = std::find_if(std::begin(kExports), std::end(kExports),
                                           [=](const Export &one) { return one.entry->name == name; });
    return found == std::end(kExports) ? nullptr : found;
}

constexpr int kFirstPerThread = 7000;  // per-thread default streams came with CUDA 7.0

CUdriverProcAddressQueryResult look_up(std::string_view name, int version, bool per_thread, void **address) {
    const Export *best = nullptr;
    int best_since = 0;
    bool known = false;
    const auto consider = [&](int since, const Export *meaning) {
        if (since > kCudaVersion) return;  // newer than this driver
        known = true;
        if (since > version || since <= best_since) return;
        best_since = since;
        best = meaning;
    };
    for (const Export &one : kExports)
        if (one.entry->since && without_version(one.entry->name) == name) consider(one.entry->since, &one);
    for (const auto &other : kOthers)
        if (other.name == name) consider(other.since, find_export(other.meaning));
    if (!known) return CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    if (!best_since) return CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
    if (!best) return CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    *address = best->address;
    for (const char *form : {"_ptsz", "_ptds"})
        if (const Export *own = find_export(std::string(best->entry->name) + form);
            own && per_thread && version >= kFirstPerThread)
            *address = own->address;
    return CU_GET_PROC_ADDRESS_SUCCESS;
}

void answer(const char *name, void **address, int version, uint64_t flags, CUdriverProcAddressQueryResult *status) {
    constexpr uint64_t kKnown = CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    if (!name || !address || flags & ~kKnown) throw CUDA_ERROR_INVALID_VALUE;
    // If it finds nothing, the call succeeds with a null address, even without `status` (measured on an H200).
    *address = nullptr;
    const auto found = look_up(name, version, flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, address);
    if (status) *status = found;
}

}  // namespace

Entry *find_entry(std::string_view name) {
    const Export *found = find_export(name);
    return found ? found->entry : nullptr;
}

SIM_CU(12000, cuGetProcAddress_v2,
       (const char *name, void **address, int version, uint64_t flags, CUdriverProcAddressQueryResult *status),
       (name, address, version, flags, status)) {
    answer(name, address, version, flags, status);
}

SIM_CU(11030, cuGetProcAddress, (const char *name, void **address, int version, uint64_t flags),
       (name, address, version, flags)) {
    answer(name, address, version, flags, nullptr);
}

// The private tables of real runtimes are not imitated.
SIM_CU(3000, cuGetExportTable, (const void **table, const CUuuid *id), (table, id)) {
    throw table && id ? CUDA_ERROR_NOT_FOUND : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace curb::sim
