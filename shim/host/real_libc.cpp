#include "host/real_libc.hpp"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/auxv.h>

#include <atomic>
#include <cstdint>

// How curb finds the real dlsym. Every reference to dlsym, versioned or not, binds to curb's export: an unversioned
// definition answers all of them (so curb serves callers bound to GLIBC_2.2.5 and to GLIBC_2.34 alike). So curb reads
// dlsym from glibc's own symbol table and asks it for the next dlsym in the search order: glibc's, or that of a preload
// behind curb, which stays in the chain. dlvsym would not do: it skips preloads, whose definitions have no version.

namespace curb::shim::real {
namespace {

// The path to dlsym calls no libc function, not even strcmp: a sanitizer's runtime looks up dlsym while it sets up its
// interceptors, which cannot be called yet.
bool same(const char *a, const char *b) noexcept {
    for (; *a && *a == *b; ++a, ++b) {
    }
    return *a == *b;
}

bool begins_with(const char *text, const char *beginning) noexcept {
    for (; *beginning; ++text, ++beginning)
        if (*text != *beginning) return false;
    return true;
}

template <class F>
F *once(std::atomic<F *> &known, void *(*find)(const char *) noexcept, const char *name) noexcept {
    F *function = known.load();
    if (!function) known.store(function = reinterpret_cast<F *>(find(name)));
    return function;
}

void *find_next(const char *name) noexcept {
    auto *look_up = dlsym();
    return look_up ? look_up(RTLD_NEXT, name) : nullptr;
}

// Returns the implementation of an indirect function (STT_GNU_IFUNC). Its resolver takes the hardware's capabilities on
// AArch64; on x86-64 it asks the processor.
void *resolved(void *resolver) noexcept {
    return reinterpret_cast<void *(*)(unsigned long)>(resolver)(::getauxval(AT_HWCAP));
}

// The parts of a dynamic symbol table that a search by name needs.
struct SymbolTable {
    const ElfW(Sym) *symbols = nullptr;
    const char *names = nullptr;
    const std::uint32_t *gnu_hash = nullptr;

    [[nodiscard]] bool is_complete() const noexcept { return symbols && names && gnu_hash && gnu_hash[0] != 0; }
};

SymbolTable table_of(ElfW(Addr) base, const ElfW(Dyn) * dynamic) noexcept {
    SymbolTable out;
    for (const ElfW(Dyn) *entry = dynamic; entry->d_tag != DT_NULL; ++entry) {
        // glibc relocates these pointers in place, except where the dynamic section is read-only (the vDSO).
        const ElfW(Addr) address = entry->d_un.d_ptr < base ? base + entry->d_un.d_ptr : entry->d_un.d_ptr;
        const void *table = reinterpret_cast<const void *>(address);
        if (entry->d_tag == DT_SYMTAB) out.symbols = static_cast<const ElfW(Sym) *>(table);
        if (entry->d_tag == DT_STRTAB) out.names = static_cast<const char *>(table);
        if (entry->d_tag == DT_GNU_HASH) out.gnu_hash = static_cast<const std::uint32_t *>(table);
    }
    return out;
}

}  // namespace

// Searches the GNU hash section of the dynamic symbol table (layout: the GNU extension to the gABI, "DT_GNU_HASH").
void *defined_in(ElfW(Addr) base, const ElfW(Dyn) * dynamic, const char *name) noexcept {
    const SymbolTable table = table_of(base, dynamic);
    if (!table.is_complete()) return nullptr;
    std::uint32_t hash = 5381;
    for (const char *c = name; *c; ++c) hash = hash * 33 + static_cast<unsigned char>(*c);
    const std::uint32_t *const head = table.gnu_hash;
    const std::uint32_t bucket_count = head[0], first = head[1], bloom_words = head[2];
    const auto *buckets =
        reinterpret_cast<const std::uint32_t *>(reinterpret_cast<const ElfW(Addr) *>(head + 4) + bloom_words);
    const std::uint32_t *chain = buckets + bucket_count;
    for (std::uint32_t i = buckets[hash % bucket_count]; i >= first && i != 0; ++i) {
        const std::uint32_t other = chain[i - first];
        const ElfW(Sym) &symbol = table.symbols[i];
        const int type = ELF64_ST_TYPE(symbol.st_info);
        if ((other | 1) == (hash | 1) && symbol.st_shndx != SHN_UNDEF && (type == STT_FUNC || type == STT_GNU_IFUNC) &&
            same(table.names + symbol.st_name, name)) {
            void *address = reinterpret_cast<void *>(base + symbol.st_value);
            return type == STT_FUNC ? address : resolved(address);
        }
        if (other & 1) break;
    }
    return nullptr;
}

// glibc up to 2.33 has these in libdl.so.2, since 2.34 in libc.so.6. Both are at the head of the list of loaded objects
// and are never unloaded, so we may read the list while other threads load libraries.
void *glibcs(const char *name) noexcept {
    for (const link_map *object = _r_debug.r_map; object; object = object->l_next) {
        const char *base = object->l_name;
        for (const char *c = base; *c; ++c)
            if (*c == '/') base = c + 1;
        if (!begins_with(base, "libc.so.6") && !begins_with(base, "libc-2.") && !begins_with(base, "libdl.so.2") &&
            !begins_with(base, "libdl-2."))
            continue;
        if (void *address = defined_in(object->l_addr, object->l_ld, name)) return address;
    }
    return nullptr;
}

namespace {

// Falls back to the next one in the search order, so that it is never null: waiting requests call it.
void *find_clock(const char *name) noexcept {
    void *own = glibcs(name);
    return own ? own : reinterpret_cast<void *>(::clock_gettime);
}

}  // namespace

#define CURB_REAL(type, function, find, symbol)              \
    type *function() noexcept {                              \
        static constinit std::atomic<type *> known{nullptr}; \
        return once(known, find, symbol);                    \
    }
CURB_REAL(Dlsym, dlsym, glibcs, "dlsym")
CURB_REAL(Dlvsym, dlvsym, glibcs, "dlvsym")
CURB_REAL(ClockGettime, clock_gettime, find_clock, "clock_gettime")
CURB_REAL(Dlsym, next_dlsym, find_next, "dlsym")
CURB_REAL(Dlvsym, next_dlvsym, find_next, "dlvsym")
CURB_REAL(Sigaction, sigaction, find_next, "sigaction")
CURB_REAL(Signal, signal, find_next, "signal")
CURB_REAL(Signal, sysv_signal, find_next, "sysv_signal")
CURB_REAL(Signal, sigset, find_next, "sigset")
CURB_REAL(Sigignore, sigignore, find_next, "sigignore")
CURB_REAL(Siginterrupt, siginterrupt, find_next, "siginterrupt")
#undef CURB_REAL

}  // namespace curb::shim::real
