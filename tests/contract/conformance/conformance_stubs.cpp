// libconformance_stubs.so: exports the driver's names itself, as libtensorflow_framework.so does: stubs that open the
// library on first use, look the function up in it, and jump there. CONFORMANCE_STUBS says how they open it: `path` by
// one of CONFORMANCE_PATHS, `absent` a library that does not exist, else by its name, which the run path may find.
// `jumps`, `calls`: they open none, and jump to or call the function that the program finds first, which is curb's.
//
// Where there is no driver, they return an error that no driver returns.
#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>

extern "C" {

__attribute__((visibility("hidden"))) int conformance_stub_fails() { return 7777; }

__attribute__((visibility("hidden"))) int conformance_stub_calls(void *argument) {
    const auto count = reinterpret_cast<int (*)(void *)>(dlsym(RTLD_DEFAULT, "cuDeviceGetCount"));
    const volatile int result = count(argument);  // no tail call
    return result;
}

// Returns the address that a stub jumps to.
__attribute__((visibility("hidden"), used)) void *conformance_stub_target(const char *symbol) {
    const char *asked = std::getenv("CONFORMANCE_STUBS");
    if (asked && std::strcmp(asked, "jumps") == 0) return dlsym(RTLD_DEFAULT, symbol);
    if (asked && std::strcmp(asked, "calls") == 0) return reinterpret_cast<void *>(&conformance_stub_calls);
    std::string file = symbol[0] == 'n' ? "libnvidia-ml.so.1" : "libcuda.so.1";
    if (asked && std::strcmp(asked, "absent") == 0) file = "libabsent.so.1";
    if (asked && std::strcmp(asked, "path") == 0) {
        std::istringstream paths(std::getenv("CONFORMANCE_PATHS"));
        for (std::string path; std::getline(paths, path, ':');)
            if (path.substr(path.rfind('/') + 1) == file) file = path;
    }
    void *library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    void *function = library ? dlsym(library, symbol) : nullptr;
    return function ? function : reinterpret_cast<void *>(&conformance_stub_fails);
}

}  // extern "C"

#if defined(__x86_64__)
#define FUNCTION "@function"
#define ENTER "leaq 1f(%rip), %rax\njmp conformance_stub_jump\n"
asm(".text\n.type conformance_stub_jump, @function\nconformance_stub_jump:\n"
    ".cfi_startproc\n"
    "pushq %rdi\npushq %rsi\npushq %rdx\npushq %rcx\npushq %r8\npushq %r9\npushq %rax\n.cfi_adjust_cfa_offset 56\n"
    "movq %rax, %rdi\ncall conformance_stub_target\nmovq %rax, %r11\n"
    "popq %rax\npopq %r9\npopq %r8\npopq %rcx\npopq %rdx\npopq %rsi\npopq %rdi\n.cfi_adjust_cfa_offset -56\n"
    "jmp *%r11\n"
    ".cfi_endproc\n.size conformance_stub_jump, .-conformance_stub_jump\n");
#elif defined(__aarch64__)
#define FUNCTION "%function"
#define ENTER "adr x16, 1f\nb conformance_stub_jump\n"
asm(".text\n.type conformance_stub_jump, %function\nconformance_stub_jump:\n"
    ".cfi_startproc\n"
    "stp x29, x30, [sp, #-80]!\n.cfi_adjust_cfa_offset 80\n.cfi_rel_offset x29, 0\n.cfi_rel_offset x30, 8\n"
    "stp x0, x1, [sp, #16]\nstp x2, x3, [sp, #32]\nstp x4, x5, [sp, #48]\nstp x6, x7, [sp, #64]\n"
    "mov x0, x16\nbl conformance_stub_target\nmov x16, x0\n"
    "ldp x0, x1, [sp, #16]\nldp x2, x3, [sp, #32]\nldp x4, x5, [sp, #48]\nldp x6, x7, [sp, #64]\n"
    "ldp x29, x30, [sp], #80\n.cfi_adjust_cfa_offset -80\n"
    "br x16\n"
    ".cfi_endproc\n.size conformance_stub_jump, .-conformance_stub_jump\n");
#endif

// The name stands after the jump, in front of the next stub. A function may have two rows.
#define STUB(symbol)                                                                                            \
    asm(".ifndef " #symbol "\n.text\n.p2align 4\n.globl " #symbol "\n.type " #symbol ", " FUNCTION "\n" #symbol \
        ":\n.cfi_startproc\n" ENTER "1: .string \"" #symbol "\"\n.p2align 2\n.cfi_endproc\n.size " #symbol      \
        ", .-" #symbol "\n.endif\n");
#define CURB_WRAP(symbol, base, since, stream, rule) STUB(symbol)
#define CURB_PASS(symbol, base, since, stream, why) STUB(symbol)
#define CURB_CALL(symbol) STUB(symbol)
#define CURB_NVML(symbol, rule) STUB(symbol)
#include "driver/tables/entry_points.def"
STUB(nvmlInit_v2)
STUB(nvmlDeviceGetHandleByIndex_v2)
