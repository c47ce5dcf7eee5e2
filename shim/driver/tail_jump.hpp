// CURB_TAIL_JUMP(name, choose) defines the function `name` of at most three arguments. It calls choose() with them and
// jumps to the returned address, with the arguments, the return address and the stack of its own caller. In assembly,
// because C++ guarantees no tail call.
#pragma once

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
        ".cfi_rel_offset x29, 0\n.cfi_rel_offset x30, 8\n"       \
        "stp x0, x1, [sp, #16]\n"                                \
        "str x2, [sp, #32]\n"                                    \
        "bl " choose                                             \
        "\n"                                                     \
        "mov x16, x0\n"                                          \
        "ldp x0, x1, [sp, #16]\n"                                \
        "ldr x2, [sp, #32]\n"                                    \
        "ldp x29, x30, [sp], #48\n.cfi_adjust_cfa_offset -48\n"  \
        ".cfi_restore x29\n.cfi_restore x30\n"                   \
        "br x16\n"                                               \
        ".cfi_endproc\n.size " name ", .-" name "\n")
#endif
