#include "driver/thunks/thunks.hpp"

#include <link.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "driver/gate.hpp"
#include "driver/libcuda.hpp"
#include "host/real_libc.hpp"
#include "policy/values/words.hpp"

// libcuda 13.0 has about 670 functions, of which cudart looks up 440. Monitors look up about 20 of NVML's. Those that
// curb has hooks for need one only in programs that take turns.
#define CURB_SUPPLY 1024

// A thunk whose slot is at `slot`: with the gate open it jumps to the address in the slot. The slot of a named thunk is
// empty until libcuda is found. (It has no initial address: the loader would relocate each at the start of every
// process.)
#if defined(__x86_64__)
#define CURB_NAMED_BYTES 48
#if defined(__OPTIMIZE__)
#define CURB_FOUND_BYTES 32  // a thunk takes 31
#else
#define CURB_FOUND_BYTES 64  // a thunk takes 35: clang's assembler makes all jumps long
#endif
#define CURB_SLOWLY(slot) "1: leaq " slot "(%rip), %r11\njmp curb_thunk_slowly\n"
#define CURB_GATE "endbr64\ncmpl $0, curb_gate(%rip)\njne 1f\n"
#define CURB_NAMED_THUNK(slot) \
    CURB_GATE "movq " slot "(%rip), %r11\ntestq %r11, %r11\njz 1f\njmp *%r11\n" CURB_SLOWLY(slot)
#define CURB_FOUND_THUNK(slot) CURB_GATE "jmp *" slot "(%rip)\n" CURB_SLOWLY(slot)
#elif defined(__aarch64__)
#define CURB_NAMED_BYTES 48
#define CURB_FOUND_BYTES 64
#define CURB_FOUND_THUNK(slot)                                       \
    "bti c\nadrp x16, curb_gate\nldr w16, [x16, #:lo12:curb_gate]\n" \
    "adrp x17, " slot "\nadd x17, x17, #:lo12:" slot                 \
    "\ncbnz w16, 1f\n"                                               \
    "ldr x16, [x17]\ncbz x16, 1f\nbr x16\n1: b curb_thunk_slowly\n"
#define CURB_NAMED_THUNK(slot) CURB_FOUND_THUNK(slot)
#endif

#define CURB_STRING_OF(number) #number
#define CURB_STRING(number) CURB_STRING_OF(number)

// The slots, and the thunks in the same order. Assembler macros, because the whole text would exceed the string length
// that every compiler must accept.
asm(".pushsection .bss.curb_slots, \"aw\", %nobits\n.balign 8\ncurb_named_slots:\n"
    ".macro curb_slot symbol\ncurb_slot_of_\\symbol: .skip 8\n.endm\n"
#define CURB_THUNK(symbol) "curb_slot " #symbol "\n"
#define CURB_PASS(symbol, base, since, stream, why) CURB_THUNK(symbol)
#include "driver/tables/entry_points.def"
#include "thunk_names.def"
    "curb_found_slots: .skip 8 * " CURB_STRING(CURB_SUPPLY) "\n.popsection\n");
asm(".pushsection .text.curb_thunks, \"ax\"\n.balign 64\ncurb_named_thunks:\n.cfi_startproc\n"
    ".macro curb_thunk symbol\n"
    ".globl \\symbol\n.type \\symbol, %function\n\\symbol:\n" CURB_NAMED_THUNK("curb_slot_of_\\symbol")
    ".size \\symbol, .-\\symbol\n.balign 16\n.endm\n"
#define CURB_THUNK(symbol) "curb_thunk " #symbol "\n"
#define CURB_PASS(symbol, base, since, stream, why) CURB_THUNK(symbol)
#include "driver/tables/entry_points.def"
#include "thunk_names.def"
    ".balign 64\ncurb_found_thunks:\n.set curb_number, 0\n.rept " CURB_STRING(CURB_SUPPLY) "\n"
    ".balign " CURB_STRING(CURB_FOUND_BYTES) "\n" CURB_FOUND_THUNK("curb_found_slots + 8 * curb_number")
    ".set curb_number, curb_number + 1\n.endr\n.cfi_endproc\n.popsection\n");

// Saves the argument registers, gets the function from curb_thunk_target(slot), and jumps to it. A counted call it
// calls instead, with a copy of the arguments on the stack: of the driver's functions none has more than 64 bytes of
// them (cuIpcOpenMemHandle, by value).
#if defined(__x86_64__)
asm(".pushsection .text.curb_thunks, \"ax\"\n.balign 16\n.type curb_thunk_slowly, @function\ncurb_thunk_slowly:\n"
    ".cfi_startproc\n"
    "pushq %rdi\n.cfi_adjust_cfa_offset 8\n"
    "pushq %rsi\n.cfi_adjust_cfa_offset 8\n"
    "pushq %rdx\n.cfi_adjust_cfa_offset 8\n"
    "pushq %rcx\n.cfi_adjust_cfa_offset 8\n"
    "pushq %r8\n.cfi_adjust_cfa_offset 8\n"
    "pushq %r9\n.cfi_adjust_cfa_offset 8\n"
    "subq $72, %rsp\n.cfi_adjust_cfa_offset 72\n"
    "movsd %xmm0, (%rsp)\nmovsd %xmm1, 8(%rsp)\nmovsd %xmm2, 16(%rsp)\nmovsd %xmm3, 24(%rsp)\n"
    "movsd %xmm4, 32(%rsp)\nmovsd %xmm5, 40(%rsp)\nmovsd %xmm6, 48(%rsp)\nmovsd %xmm7, 56(%rsp)\n"
    "movq %r11, %rdi\n"
    "call curb_thunk_target\n"
    "movq %rax, %r11\n"
    "movq %rdx, %r10\n"
    "movsd (%rsp), %xmm0\nmovsd 8(%rsp), %xmm1\nmovsd 16(%rsp), %xmm2\nmovsd 24(%rsp), %xmm3\n"
    "movsd 32(%rsp), %xmm4\nmovsd 40(%rsp), %xmm5\nmovsd 48(%rsp), %xmm6\nmovsd 56(%rsp), %xmm7\n"
    "addq $72, %rsp\n.cfi_adjust_cfa_offset -72\n"
    "popq %r9\n.cfi_adjust_cfa_offset -8\n"
    "popq %r8\n.cfi_adjust_cfa_offset -8\n"
    "popq %rcx\n.cfi_adjust_cfa_offset -8\n"
    "popq %rdx\n.cfi_adjust_cfa_offset -8\n"
    "popq %rsi\n.cfi_adjust_cfa_offset -8\n"
    "popq %rdi\n.cfi_adjust_cfa_offset -8\n"
    "testq %r10, %r10\n"
    "jnz 1f\n"
    "jmp *%r11\n"
    "1: subq $72, %rsp\n.cfi_adjust_cfa_offset 72\n"
    "movl $7, %eax\n"
    "2: movq 80(%rsp,%rax,8), %r10\nmovq %r10, (%rsp,%rax,8)\n"
    "decl %eax\n"
    "jns 2b\n"
    "call *%r11\n"
    "movq %rax, (%rsp)\n"
    "call curb_thunk_returned\n"
    "movq (%rsp), %rax\n"
    "addq $72, %rsp\n.cfi_adjust_cfa_offset -72\n"
    "ret\n"
    ".cfi_endproc\n.size curb_thunk_slowly, .-curb_thunk_slowly\n.popsection\n");
#elif defined(__aarch64__)
asm(".pushsection .text.curb_thunks, \"ax\"\n.balign 16\n.type curb_thunk_slowly, %function\ncurb_thunk_slowly:\n"
    ".cfi_startproc\n"
    "stp x29, x30, [sp, #-144]!\n.cfi_adjust_cfa_offset 144\n.cfi_rel_offset x29, 0\n.cfi_rel_offset x30, 8\n"
    "stp x0, x1, [sp, #16]\nstp x2, x3, [sp, #32]\nstp x4, x5, [sp, #48]\nstp x6, x7, [sp, #64]\n"
    "stp d0, d1, [sp, #80]\nstp d2, d3, [sp, #96]\nstp d4, d5, [sp, #112]\nstp d6, d7, [sp, #128]\n"
    "mov x0, x17\n"
    "bl curb_thunk_target\n"
    "mov x16, x0\n"
    "mov x17, x1\n"
    "ldp x0, x1, [sp, #16]\nldp x2, x3, [sp, #32]\nldp x4, x5, [sp, #48]\nldp x6, x7, [sp, #64]\n"
    "ldp d0, d1, [sp, #80]\nldp d2, d3, [sp, #96]\nldp d4, d5, [sp, #112]\nldp d6, d7, [sp, #128]\n"
    "ldp x29, x30, [sp], #144\n.cfi_adjust_cfa_offset -144\n.cfi_restore x29\n.cfi_restore x30\n"
    "cbnz x17, 1f\n"
    "br x16\n"
    "1: stp x29, x30, [sp, #-80]!\n.cfi_adjust_cfa_offset 80\n.cfi_rel_offset x29, 0\n.cfi_rel_offset x30, 8\n"
    "sub sp, sp, #64\n.cfi_adjust_cfa_offset 64\n"
    "ldp x10, x11, [sp, #144]\nstp x10, x11, [sp]\n"
    "ldp x10, x11, [sp, #160]\nstp x10, x11, [sp, #16]\n"
    "ldp x10, x11, [sp, #176]\nstp x10, x11, [sp, #32]\n"
    "ldp x10, x11, [sp, #192]\nstp x10, x11, [sp, #48]\n"
    "blr x16\n"
    "str x0, [sp, #80]\n"
    "bl curb_thunk_returned\n"
    "ldr x0, [sp, #80]\n"
    "add sp, sp, #64\n.cfi_adjust_cfa_offset -64\n"
    "ldp x29, x30, [sp], #80\n.cfi_adjust_cfa_offset -80\n.cfi_restore x29\n.cfi_restore x30\n"
    "ret\n"
    ".cfi_endproc\n.size curb_thunk_slowly, .-curb_thunk_slowly\n.popsection\n");
#endif

extern "C" {
#define CURB_INTERNAL __attribute__((visibility("hidden")))
extern CURB_INTERNAL std::atomic<void *> curb_named_slots[], curb_found_slots[];
extern CURB_INTERNAL const char curb_named_thunks[], curb_found_thunks[];
}

namespace curb::shim::thunks {
namespace {

// The names of the named thunks, in the order of their slots. One text, because pointers would be relocated at the
// start of every process.
constexpr char kText[] =
#define CURB_PASS(symbol, base, since, stream, why) #symbol "\0"
#define CURB_THUNK(symbol) #symbol "\0"
#include "driver/tables/entry_points.def"
#include "thunk_names.def"
    ;
using Number = std::uint16_t;
constexpr auto kBegins = [] {  // of each name in kText
    constexpr Number kSizes[] = {
#define CURB_PASS(symbol, base, since, stream, why) sizeof #symbol,
#define CURB_THUNK(symbol) sizeof #symbol,
#include "driver/tables/entry_points.def"
#include "thunk_names.def"
    };
    std::array<Number, std::size(kSizes)> begins{};
    for (std::size_t i = 1; i < begins.size(); ++i) begins[i] = static_cast<Number>(begins[i - 1] + kSizes[i - 1]);
    return begins;
}();
constexpr std::size_t kNamed = kBegins.size();
static_assert(sizeof kText < 65'536);

const char *symbol_at(std::size_t number) noexcept { return kText + kBegins[number]; }

constinit std::atomic<bool> used_up{false};

void *supplied(std::size_t number) noexcept {
    return const_cast<char *>(curb_found_thunks + number * CURB_FOUND_BYTES);
}

// The preloads behind curb: a reference to one of their definitions must reach it, as without curb. The loader lists
// them before the libraries that the program needs, and never unloads them.
class Preloads {
  public:
    Preloads() noexcept {
        const link_map *program = _r_debug.r_map;
        const Range self = library_around(reinterpret_cast<std::uintptr_t>(&curb_gate));
        for (begin_ = program; begin_ && !self.has(reinterpret_cast<std::uintptr_t>(begin_->l_ld));)
            begin_ = begin_->l_next;
        if (begin_) begin_ = begin_->l_next;
        for (end_ = begin_; end_ && !is_needed(program, end_);) end_ = end_->l_next;
    }
    [[nodiscard]] void *definition(const char *name) const noexcept {
        for (const link_map *one = begin_; one != end_; one = one->l_next)
            if (void *found = real::defined_in(one->l_addr, one->l_ld, name)) return found;
        return nullptr;
    }

  private:
    // True for a library that the program itself is linked to.
    static bool is_needed(const link_map *program, const link_map *library) noexcept {
        const char *names = nullptr;
        for (const auto *entry = program->l_ld; entry->d_tag != DT_NULL; ++entry)
            if (entry->d_tag == DT_STRTAB) names = reinterpret_cast<const char *>(entry->d_un.d_ptr);
        for (const auto *entry = program->l_ld; names && entry->d_tag != DT_NULL; ++entry)
            if (entry->d_tag == DT_NEEDED &&
                policy::file_name(names + entry->d_un.d_val) == policy::file_name(library->l_name))
                return true;
        return false;
    }

    const link_map *begin_ = nullptr, *end_ = nullptr;
};

}  // namespace

bool answers_while_closed(std::string_view name) noexcept {
    return name.starts_with("cuCheckpointProcess") || name.starts_with("cuGetError") || name == "cuCtxGetCurrent" ||
           name == "cuDriverGetVersion" || name == "cuGetExportTable";
}

const char *name_of(const std::atomic<void *> *slot) noexcept {
    const bool is_named = slot >= curb_named_slots && slot < curb_named_slots + kNamed;
    return is_named ? symbol_at(static_cast<std::size_t>(slot - curb_named_slots)) : nullptr;
}

void *named(const char *symbol) noexcept {
    for (std::size_t i = 0; i < kNamed; ++i)
        if (std::strcmp(symbol_at(i), symbol) == 0) return const_cast<char *>(curb_named_thunks + i * CURB_NAMED_BYTES);
    return nullptr;
}

namespace {

void *supplied_for(void *driver_address) noexcept {
    // The slots themselves are a lock-free hash table: a fork child could find a lock taken.
    const std::size_t first = reinterpret_cast<std::uintptr_t>(driver_address) >> 4;
    for (std::size_t i = 0; i < CURB_SUPPLY; ++i) {
        const std::size_t number = (first + i) % CURB_SUPPLY;
        void *there = nullptr;
        if (curb_found_slots[number].compare_exchange_strong(there, driver_address) || there == driver_address)
            return supplied(number);
    }
    used_up = true;
    return driver_address;
}

}  // namespace

void *for_function(void *driver_address, const char *name) noexcept {
    const bool is_of_libcuda = libcuda::range().has(reinterpret_cast<std::uintptr_t>(driver_address));
    return is_of_libcuda && !answers_while_closed(name) ? supplied_for(driver_address) : driver_address;
}

void *for_nvml(void *address, const char *name) noexcept {
    const bool is_answered = std::strcmp(name, "nvmlErrorString") == 0;  // without the driver
    return is_answered ? address : supplied_for(address);
}

bool all_gated() noexcept { return !used_up; }

void *counting(void *driver_address) noexcept { return supplied_for(driver_address); }

void fill() noexcept {
    const Preloads preloads;
    for (std::size_t i = 0; i < kNamed; ++i) {
        void *function = preloads.definition(symbol_at(i));
        curb_named_slots[i].store(function ? function : libcuda::function(symbol_at(i)));
    }
}

const char *name_at(const void *driver_address) noexcept {
    for (std::size_t i = 0; i < kNamed; ++i)
        if (libcuda::function(symbol_at(i)) == driver_address) return symbol_at(i);
    return nullptr;
}

}  // namespace curb::shim::thunks
