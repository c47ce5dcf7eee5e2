// The calls of the child: every family of memory (tests/families) through functions that were looked up in one way.

#include "abi/nvml_abi.h"
#include "conformance_probe.hpp"
#include "conformance_rows.hpp"
#include "families.hpp"

namespace conformance {
namespace {

using families::kMiB;
constexpr families::Bytes kPiece = 512 * kMiB;

// Chooses the thread's own stream, and destroys a pool after its block: the other order makes driver 580 crash later,
// without curb too (docs/results/driver.md).
constexpr unsigned kChoice = 6;

// The result of calling a function that the driver lacks. The driver never returns it.
constexpr auto kAbsent = static_cast<CUresult>(777);

Find the_find = nullptr;

#define CALL(function, ...) call(reinterpret_cast<decltype(&::function)>(the_find(#function)), __VA_ARGS__)

template <class Function, class... Args>
CUresult call(Function *function, Args... args) {
    return function ? static_cast<CUresult>(function(args...)) : kAbsent;
}

constexpr std::string_view kForm = "_ptsz";

// Calls by the_find; if wanted, in the per-thread form, where a row has one.
class Found final : public families::Calls {
  public:
    explicit Found(bool per_thread) : per_thread_(per_thread) {}
    CUresult make(const char *name, void *, const std::function<CUresult(void *)> &call) override {
        const std::string form = std::string(name).append(kForm);
        void *function = the_find(per_thread_ && row_of(form) ? form.c_str() : name);
        return function ? call(function) : kAbsent;
    }

  private:
    bool per_thread_;
};

bool is_per_thread(std::string_view symbol) { return symbol.ends_with(kForm); }

// Returns the first family of an export, if a piece of it has a size. Else null.
const families::Family *family_of(std::string_view symbol) {
    if (is_per_thread(symbol)) symbol.remove_suffix(kForm.size());
    for (const families::Family &one : families::families())
        if (symbol == one.entry) return families::taken(one, 1) != 0 ? &one : nullptr;
    return nullptr;
}

}  // namespace

bool allocates(std::string_view symbol) { return family_of(symbol) != nullptr; }

std::string initialise(Find find) {
    the_find = find;
    CUcontext context = nullptr;
    const CUresult init = CALL(cuInit, 0U);
    const CUresult retain = CALL(cuDevicePrimaryCtxRetain, &context, 0);
    const CUresult current = context ? CALL(cuCtxSetCurrent, context) : kAbsent;
    return std::to_string(init) + " " + std::to_string(retain) + " " + std::to_string(current);
}

// Takes a piece, another while the first is held, and one more after freeing both. Returns the three results.
std::string allocate(Find find, const std::string &symbol) {
    the_find = find;
    if (!find(symbol.c_str())) return "absent";
    const families::Family &family = *family_of(symbol);
    Found calls(is_per_thread(symbol));
    const families::Place place = families::make_place(calls, 0);
    const families::Use use{calls, place, kChoice};
    families::Block blocks[3];
    std::string results;
    for (const unsigned i : {0U, 1U, 2U}) {
        blocks[i].bytes = family.nth(i % 2, kPiece);
        const CUresult result = family.take(use, blocks[i]);
        results += (i ? " " : "") + std::to_string(result);
        if (result != CUDA_SUCCESS) blocks[i].bytes = 0;
        for (families::Block &block : blocks)
            if (i != 0 && block.bytes != 0) {
                family.give(use, block);
                block = {};
            }
        CU(cuStreamSynchronize, use.stream());  // a pool gives back only frees that are seen complete
    }
    families::end_place(calls, place);
    return results;
}

bool tells_memory(std::string_view symbol) {
    return symbol == "cuDeviceTotalMem_v2" || symbol == "cuMemGetInfo_v2" || symbol == "nvmlDeviceGetMemoryInfo" ||
           symbol == "nvmlDeviceGetMemoryInfo_v2";
}

std::string figures(Find find, const std::string &function) {
    the_find = find;
    if (!find(function.c_str())) return "absent";
    CUresult result = kAbsent;
    unsigned long long total = 0;
    bool adds_up = true;
    nvmlDevice_t device = nullptr;
    if (function[0] == 'n') {
        auto *init = reinterpret_cast<decltype(&::nvmlInit_v2)>(find("nvmlInit_v2"));
        if (init) init();
        CALL(nvmlDeviceGetHandleByIndex_v2, 0U, &device);
    }
    if (function == "cuDeviceTotalMem_v2") {
        std::size_t bytes = 0;
        result = CALL(cuDeviceTotalMem_v2, &bytes, 0);
        total = bytes;
    } else if (function == "cuMemGetInfo_v2") {
        std::size_t free = 0, bytes = 0;
        result = CALL(cuMemGetInfo_v2, &free, &bytes);
        total = bytes;
        adds_up = free < total;
    } else if (function == "nvmlDeviceGetMemoryInfo") {
        nvmlMemory_t memory{};
        result = CALL(nvmlDeviceGetMemoryInfo, device, &memory);
        total = memory.total;
        adds_up = memory.used + memory.free == total;
    } else {
        nvmlMemory_v2_t memory{};
        memory.version = nvmlMemory_v2;
        result = CALL(nvmlDeviceGetMemoryInfo_v2, device, &memory);
        total = memory.total;
        adds_up = memory.used + memory.free + memory.reserved == total;
    }
    return std::to_string(result) + " " + std::to_string(total / kMiB) + " MiB" + (adds_up ? "" : ", not the sum");
}

}  // namespace conformance
