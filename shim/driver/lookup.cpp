// How programs come by the driver's functions, and how each way leads to our wrappers: dlsym and dlvsym on libcuda and
// libnvidia-ml, and cuGetProcAddress. (The third way, the exported symbols themselves, needs no code.)
//
// glibc takes the meaning of RTLD_NEXT and RTLD_DEFAULT from the return address of the dlsym call. So whatever is not
// ours must reach the next dlsym, glibc's or another preload's, as a tail jump, with the caller's own return address on
// the stack: a normal call would make the dlsym of every other preload find the wrong function. C++ does not promise a
// tail call, so the two exports are a few instructions of assembly: keep the arguments, ask choose() where to go, jump
// there.

#include <dlfcn.h>

#include <cstring>

#include "driver.hpp"
#include "nvml.hpp"
#include "real_libc.hpp"
#include "stubs.hpp"

namespace curb::shim {
namespace {

// The names of the table begin with "cu" or "nvml" and a capital letter; cudnn*, cublas*, curl_* and all else go on
// unread.
bool may_be_ours(const char *name) noexcept {
    if (name == nullptr) return false;
    const char *rest = name[0] == 'c' && name[1] == 'u' ? name + 2 : std::strncmp(name, "nvml", 4) == 0 ? name + 4 : "";
    return *rest >= 'A' && *rest <= 'Z';
}

// Our export for a name of the table; null: it is in none.
void *export_named(const char *name) noexcept {
    if (!may_be_ours(name)) return nullptr;
    void *wrapper = wrapper_named(name);
    return wrapper ? wrapper : nvml_wrapper_named(name);
}

// Answers for a name of the table, by what the real look-up finds: of `handle`, and behind us. `caller` is the
// program's code that asks.
template <class LookUp>
void *answer(const char *name, LookUp look_up, void *handle, const void *caller) noexcept {
    void *found = look_up(handle);
    void *wrapper = export_named(name);
    // Our own export came back: the name was asked of the global scope. For the program it is there only if something
    // behind us has it: the library may be absent, opened RTLD_LOCAL, or older than the name. Else the look-up behind
    // us fails as the program expects, and leaves its dlerror. RTLD_DEFAULT also means what the caller depends on.
    if (found == wrapper) {
        const bool depends = caller && handle == RTLD_DEFAULT && stubs::definition_in_scope(name, wrapper, caller);
        return depends || look_up(RTLD_NEXT) ? wrapper : nullptr;
    }
    if (found == nullptr) return nullptr;
    if (wrapper_named(name) == nullptr) return found == nvml::loaded(name) ? wrapper : found;
    driver();  // the slots must be there before addresses can be compared
    void *ours = wrapper_of(found);
    return ours ? ours : found;
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

// Where the exports jump to. RTLD_NEXT is how a preload reaches what stands behind it: glibc answers it, with our
// exports for a preload before us. Only a name that nothing behind us has must not be found from there either.
extern "C" __attribute__((used)) void *curb_choose_dlsym(void *handle, const char *name) noexcept {
    const bool ours = export_named(name) && (handle != RTLD_NEXT || !real::dlsym()(RTLD_NEXT, name));
    return ours ? reinterpret_cast<void *>(&answer_dlsym) : reinterpret_cast<void *>(real::next_dlsym());
}
extern "C" __attribute__((used)) void *curb_choose_dlvsym(void *handle, const char *name,
                                                          const char *version) noexcept {
    const bool ours = export_named(name) && (handle != RTLD_NEXT || !real::dlvsym()(RTLD_NEXT, name, version));
    return ours ? reinterpret_cast<void *>(&answer_dlvsym) : reinterpret_cast<void *>(real::next_dlvsym());
}

}  // namespace curb::shim

#if defined(__x86_64__)
#define CURB_TAIL_JUMP(name, choose)             \
    asm(".text\n.globl " name "\n.type " name    \
        ", @function\n"                          \
        ".p2align 4\n" name                      \
        ":\n"                                    \
        ".cfi_startproc\n"                       \
        "endbr64\n"                              \
        "pushq %rdi\n.cfi_adjust_cfa_offset 8\n" \
        "pushq %rsi\n.cfi_adjust_cfa_offset 8\n" \
        "pushq %rdx\n.cfi_adjust_cfa_offset 8\n" \
        "call " choose                           \
        "\n"                                     \
        "popq %rdx\n.cfi_adjust_cfa_offset -8\n" \
        "popq %rsi\n.cfi_adjust_cfa_offset -8\n" \
        "popq %rdi\n.cfi_adjust_cfa_offset -8\n" \
        "jmp *%rax\n"                            \
        ".cfi_endproc\n.size " name ", .-" name "\n")
#elif defined(__aarch64__)
#define CURB_TAIL_JUMP(name, choose)                             \
    asm(".text\n.globl " name "\n.type " name                    \
        ", %function\n"                                          \
        ".p2align 4\n" name                                      \
        ":\n"                                                    \
        ".cfi_startproc\n"                                       \
        "bti c\n"                                                \
        "stp x29, x30, [sp, #-48]!\n.cfi_adjust_cfa_offset 48\n" \
        "stp x0, x1, [sp, #16]\n"                                \
        "str x2, [sp, #32]\n"                                    \
        "bl " choose                                             \
        "\n"                                                     \
        "mov x16, x0\n"                                          \
        "ldp x0, x1, [sp, #16]\n"                                \
        "ldr x2, [sp, #32]\n"                                    \
        "ldp x29, x30, [sp], #48\n.cfi_adjust_cfa_offset -48\n"  \
        "br x16\n"                                               \
        ".cfi_endproc\n.size " name ", .-" name "\n")
#endif
CURB_TAIL_JUMP("dlsym", "curb_choose_dlsym");
CURB_TAIL_JUMP("dlvsym", "curb_choose_dlvsym");

namespace {

// The driver is asked first and keeps its return code and *status; only the address is replaced.
void replace_address(const char *name, int version, uint64_t flags, CUresult result, void **function) noexcept {
    using namespace curb::shim;
    if (result != CUDA_SUCCESS || function == nullptr || *function == nullptr || name == nullptr) return;
    void *ours = wrapper_of(*function);
    if (!ours && may_be_ours(name)) ours = adopt(name, version, flags, *function);
    if (ours) *function = ours;
}

}  // namespace

CUresult cuGetProcAddress(const char *name, void **function, int version, uint64_t flags) {
    const CUresult result = curb::shim::driver().cuGetProcAddress(name, function, version, flags);
    replace_address(name, version, flags, result, function);
    return result;
}

CUresult cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags,
                             CUdriverProcAddressQueryResult *status) {
    const CUresult result = curb::shim::driver().cuGetProcAddress_v2(name, function, version, flags, status);
    replace_address(name, version, flags, result, function);
    return result;
}
