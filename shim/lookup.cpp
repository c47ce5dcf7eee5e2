// How programs come by the driver's functions, and how each way leads to our wrappers: dlsym and dlvsym on libcuda,
// and cuGetProcAddress. (The third way, the exported symbols themselves, needs no code.)
//
// glibc takes the meaning of RTLD_NEXT and RTLD_DEFAULT from the return address of the dlsym call. So whatever is not
// ours must reach the real dlsym as a tail jump, with the caller's own return address on the stack: a normal call would
// make the dlsym of every other preload find the wrong function. C++ does not promise a tail call, so the two exports
// are a few instructions of assembly: keep the arguments, ask choose() where to go, jump there.

#include <dlfcn.h>

#include <cstring>

#include "driver.hpp"
#include "real_libc.hpp"

namespace curb::shim {
namespace {

// The names of the table begin with "cu" and a capital letter; cudnn*, cublas*, curl_* and all else go on unread.
bool may_be_ours(const char *name) noexcept {
    return name != nullptr && name[0] == 'c' && name[1] == 'u' && name[2] >= 'A' && name[2] <= 'Z';
}

// Answers for a name that is in the table.
void *answer(void *handle, const char *name, void *wrapper) noexcept {
    void *found = real::dlsym()(handle, name);
    // Our own export came back: the name was asked of the global scope. Without a libcuda in the process that export
    // does not exist for the program; the look-up behind us fails as the program expects, and leaves its dlerror.
    if (found == wrapper && !driver_loaded()) return real::dlsym()(RTLD_NEXT, name);
    if (found == nullptr || found == wrapper) return found;
    driver();  // the slots must be there before addresses can be compared
    void *ours = wrapper_of(found);
    return ours ? ours : found;
}

void *answer_dlsym(void *handle, const char *name) { return answer(handle, name, wrapper_named(name)); }
void *answer_dlvsym(void *handle, const char *name, const char *) { return answer(handle, name, wrapper_named(name)); }

}  // namespace

// Where the exports jump to. RTLD_NEXT is how a preload reaches what stands behind it: it is never answered with ours.
static bool is_ours(void *handle, const char *name) noexcept {
    return handle != RTLD_NEXT && may_be_ours(name) && wrapper_named(name) != nullptr;
}
extern "C" __attribute__((used)) void *curb_choose_dlsym(void *handle, const char *name) noexcept {
    return is_ours(handle, name) ? reinterpret_cast<void *>(&answer_dlsym) : reinterpret_cast<void *>(real::dlsym());
}
extern "C" __attribute__((used)) void *curb_choose_dlvsym(void *handle, const char *name) noexcept {
    return is_ours(handle, name) ? reinterpret_cast<void *>(&answer_dlvsym) : reinterpret_cast<void *>(real::dlvsym());
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
