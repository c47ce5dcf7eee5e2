#include "real_libc.hpp"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>

#include <atomic>
#include <cstdint>
#include <cstring>

// How the real dlsym is found. Asking dlsym for dlsym is no way: any reference to it, versioned or not, binds to our own
// export, because an unversioned definition answers every version (that is what makes the interposition work for
// callers bound to GLIBC_2.2.5 and to GLIBC_2.34 alike). So dlvsym is read out of glibc's own symbol table, and with it
// the next dlsym in the search order is asked for: glibc's, or that of another preload behind us, which stays in the
// chain.

namespace curb::shim::real {
namespace {

#if defined(__x86_64__)
constexpr const char *kVersions[] = {"GLIBC_2.34", "GLIBC_2.2.5"};
#elif defined(__aarch64__)
constexpr const char *kVersions[] = {"GLIBC_2.34", "GLIBC_2.17"};
#else
#error "curb is written for x86-64 and aarch64"
#endif

// The dynamic section's tables of one loaded object.
struct SymbolTable {
    const ElfW(Sym) *symbols = nullptr;
    const char *names = nullptr;
    const std::uint32_t *gnu_hash = nullptr;

    explicit SymbolTable(const dl_phdr_info &object) {
        for (int i = 0; i < object.dlpi_phnum; ++i) {
            if (object.dlpi_phdr[i].p_type != PT_DYNAMIC) continue;
            const auto *entry = reinterpret_cast<const ElfW(Dyn) *>(object.dlpi_addr + object.dlpi_phdr[i].p_vaddr);
            for (; entry->d_tag != DT_NULL; ++entry) {
                // glibc relocates these pointers in place; an object that keeps them relative (vdso) is not libc.
                const void *table = reinterpret_cast<const void *>(entry->d_un.d_ptr);
                if (entry->d_tag == DT_SYMTAB) symbols = static_cast<const ElfW(Sym) *>(table);
                if (entry->d_tag == DT_STRTAB) names = static_cast<const char *>(table);
                if (entry->d_tag == DT_GNU_HASH) gnu_hash = static_cast<const std::uint32_t *>(table);
            }
        }
    }

    // The address of a defined function, by the GNU hash section (layout: gABI supplement "DT_GNU_HASH").
    [[nodiscard]] void *find(const char *name, ElfW(Addr) base) const {
        if (!symbols || !names || !gnu_hash) return nullptr;
        std::uint32_t hash = 5381;
        for (const char *c = name; *c; ++c) hash = hash * 33 + static_cast<unsigned char>(*c);
        const std::uint32_t bucket_count = gnu_hash[0], first = gnu_hash[1], bloom_words = gnu_hash[2];
        const auto *bloom = reinterpret_cast<const ElfW(Addr) *>(gnu_hash + 4);
        const auto *buckets = reinterpret_cast<const std::uint32_t *>(bloom + bloom_words);
        const std::uint32_t *chain = buckets + bucket_count;
        if (bucket_count == 0) return nullptr;
        for (std::uint32_t i = buckets[hash % bucket_count]; i >= first && i != 0; ++i) {
            const std::uint32_t other = chain[i - first];
            if ((other | 1) == (hash | 1) && symbols[i].st_shndx != SHN_UNDEF &&
                std::strcmp(names + symbols[i].st_name, name) == 0)
                return reinterpret_cast<void *>(base + symbols[i].st_value);
            if (other & 1) break;
        }
        return nullptr;
    }
};

// Up to glibc 2.33 dlvsym lives in libdl.so.2, since 2.34 in libc.so.6.
int find_dlvsym(dl_phdr_info *object, std::size_t, void *found) {
    const char *slash = std::strrchr(object->dlpi_name, '/');
    const char *name = slash ? slash + 1 : object->dlpi_name;
    if (std::strncmp(name, "libc.so.6", 9) != 0 && std::strncmp(name, "libc-2.", 7) != 0 &&
        std::strncmp(name, "libdl.so.2", 10) != 0 && std::strncmp(name, "libdl-2.", 8) != 0)
        return 0;
    void *address = SymbolTable(*object).find("dlvsym", object->dlpi_addr);
    if (address) *static_cast<void **>(found) = address;
    return address != nullptr;
}

template <class F>
F *next(const char *name, std::atomic<F *> &known) noexcept {
    F *function = known.load(std::memory_order_acquire);
    if (function) return function;
    for (const char *version : kVersions) {
        if (Dlvsym *look_up = dlvsym()) function = reinterpret_cast<F *>(look_up(RTLD_NEXT, name, version));
        if (function) break;
    }
    known.store(function, std::memory_order_release);
    return function;
}

constinit std::atomic<Dlvsym *> known_dlvsym{nullptr};
constinit std::atomic<Dlsym *> known_dlsym{nullptr};
constinit std::atomic<Sigaction *> known_sigaction{nullptr};
constinit std::atomic<Signal *> known_signal{nullptr};

}  // namespace

Dlvsym *dlvsym() noexcept {
    Dlvsym *function = known_dlvsym.load(std::memory_order_acquire);
    if (function) return function;
    void *found = nullptr;
    dl_iterate_phdr(find_dlvsym, &found);
    function = reinterpret_cast<Dlvsym *>(found);
    known_dlvsym.store(function, std::memory_order_release);
    return function;
}

Dlsym *dlsym() noexcept { return next("dlsym", known_dlsym); }

// sigaction has one version per architecture, older than either of dlsym's newer ones; asked for by name alone it is
// the default one.
Sigaction *sigaction() noexcept {
    Sigaction *function = known_sigaction.load(std::memory_order_acquire);
    if (!function) {
        function = reinterpret_cast<Sigaction *>(dlsym()(RTLD_NEXT, "sigaction"));
        known_sigaction.store(function, std::memory_order_release);
    }
    return function;
}

Signal *signal() noexcept {
    Signal *function = known_signal.load(std::memory_order_acquire);
    if (!function) {
        function = reinterpret_cast<Signal *>(dlsym()(RTLD_NEXT, "signal"));
        known_signal.store(function, std::memory_order_release);
    }
    return function;
}

}  // namespace curb::shim::real
