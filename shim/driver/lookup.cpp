// Wraps the look-ups by which programs find driver functions: dlsym and dlvsym on libcuda and libnvidia-ml, and
// cuGetProcAddress. (Programs that link to the driver's symbols reach curb's exports without code here.)
//
// glibc interprets RTLD_NEXT and RTLD_DEFAULT by the return address of the dlsym call. So curb must forward every other
// look-up to the next dlsym, glibc's or another preload's, by a tail jump that leaves the caller's return address on
// the stack (tail_jump.hpp). With a normal call, the dlsym of every other preload would find the wrong function.

#include <dlfcn.h>

#include <cstring>

#include "driver/driver.hpp"
#include "driver/nvml.hpp"
#include "driver/stubs.hpp"
#include "driver/tail_jump.hpp"
#include "driver/thunks/thunks.hpp"
#include "host/real_libc.hpp"

namespace curb::shim {
namespace {

// Every name of the table begins with "cu" or "nvml" and a capital letter. This excludes cudnn*, cublas*, curl_* etc.
bool may_be_ours(const char *name) noexcept {
    if (name == nullptr) return false;
    const char *rest = name[0] == 'c' && name[1] == 'u' ? name + 2 : std::strncmp(name, "nvml", 4) == 0 ? name + 4 : "";
    return *rest >= 'A' && *rest <= 'Z';
}

// Returns curb's export for a name of the table; null for other names.
void *export_named(const char *name) noexcept {
    if (!may_be_ours(name)) return nullptr;
    void *wrapper = wrapper_named(name);
    return wrapper ? wrapper : nvml_wrapper_named(name);
}

// Answers a look-up for a name of the table, from the real look-up's result. `caller`: the program's calling code.
template <class LookUp>
void *answer(const char *name, LookUp look_up, void *handle, const void *caller) noexcept {
    void *found = look_up(handle);
    if (found == nullptr) return nullptr;
    void *wrapper = export_named(name);
    // The global scope was searched and found our own export. Return it only if a library behind curb defines the name:
    // libcuda may be absent, opened RTLD_LOCAL, or too old. Otherwise the look-up behind curb fails as without curb,
    // and sets dlerror. RTLD_DEFAULT also covers the caller's dependencies.
    if (found == wrapper) {
        const bool depends = caller && handle == RTLD_DEFAULT && stubs::definition_in_scope(name, wrapper, caller);
        return depends || look_up(RTLD_NEXT) ? wrapper : nullptr;
    }
    if (name[0] == 'n') {
        if (found != nvml::loaded(name)) return found;
        return wrapper ? wrapper : thunks::for_nvml(found, name);
    }
    driver_behind_gate();  // fills the slots, which wrapper_of() compares with
    void *ours = wrapper_of(found);
    return ours ? ours : thunks::for_function(found, name);
}

void *answer_dlsym(void *handle, const char *name) {
    return answer(
        name, [=](void *where) { return real::dlsym()(where, name); }, handle, __builtin_return_address(0));
}
void *answer_dlvsym(void *handle, const char *name, const char *version) {
    return answer(
        name, [=](void *where) { return real::dlvsym()(where, name, version); }, handle, nullptr);
}

}  // namespace

// Returns the address that the exports jump to. Preloads use RTLD_NEXT to reach the library behind them. glibc answers
// that, also with our exports for a preload before curb. We answer only if no library behind curb has the name: then
// that preload must not find our export. Other names that begin like the driver's may be functions of libcuda or NVML
// that curb does not know: a look-up in one library gets a thunk for them.
extern "C" __attribute__((used)) void *curb_choose_dlsym(void *handle, const char *name) noexcept {
    const bool ours = export_named(name) ? handle != RTLD_NEXT || !real::dlsym()(RTLD_NEXT, name)
                                         : may_be_ours(name) && handle != RTLD_NEXT && handle != RTLD_DEFAULT;
    return ours ? reinterpret_cast<void *>(&answer_dlsym) : reinterpret_cast<void *>(real::next_dlsym());
}
extern "C" __attribute__((used)) void *curb_choose_dlvsym(void *handle, const char *name,
                                                          const char *version) noexcept {
    const bool ours = export_named(name) ? handle != RTLD_NEXT || !real::dlvsym()(RTLD_NEXT, name, version)
                                         : may_be_ours(name) && handle != RTLD_NEXT && handle != RTLD_DEFAULT;
    return ours ? reinterpret_cast<void *>(&answer_dlvsym) : reinterpret_cast<void *>(real::next_dlvsym());
}

}  // namespace curb::shim

CURB_TAIL_JUMP("dlsym", "curb_choose_dlsym");
CURB_TAIL_JUMP("dlvsym", "curb_choose_dlvsym");

namespace {

// Replaces the address that the driver returned. Its return code and *status stay.
void replace_address(const char *name, int version, uint64_t flags, CUresult result, void **function) noexcept {
    using namespace curb::shim;
    if (result != CUDA_SUCCESS || function == nullptr || *function == nullptr || name == nullptr) return;
    void *ours = wrapper_of(*function);
    if (!ours && may_be_ours(name)) ours = adopt(name, version, flags, *function);
    *function = ours ? ours : thunks::for_function(*function, name);
}

}  // namespace

CUresult cuGetProcAddress(const char *name, void **function, int version, uint64_t flags) {
    const CUresult result = curb::shim::driver_behind_gate().cuGetProcAddress(name, function, version, flags);
    replace_address(name, version, flags, result, function);
    return result;
}

CUresult cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags,
                             CUdriverProcAddressQueryResult *status) {
    const CUresult result =
        curb::shim::driver_behind_gate().cuGetProcAddress_v2(name, function, version, flags, status);
    replace_address(name, version, flags, result, function);
    return result;
}
