// A preload that defines dlsym and dlvsym and forwards to libc's own, which it finds by reading libc's symbol table:
// whoever stands behind it is passed by.
#include <dlfcn.h>
#include <elf.h>
#include <link.h>

#include <atomic>
#include <cstring>

#include "preload.hpp"

namespace {

constinit std::atomic<unsigned long> calls{0};

// The symbols of an object are as many as its hash table's chains, of which the last one ends the table.
std::size_t symbols_of(const std::uint32_t *hash) {
    const std::uint32_t buckets = hash[0], first = hash[1], bloom = hash[2];
    const auto *bucket = hash + 4 + bloom * (sizeof(ElfW(Addr)) / 4);
    const auto *chain = bucket + buckets;
    std::uint32_t last = 0;
    for (std::uint32_t i = 0; i < buckets; ++i) last = bucket[i] > last ? bucket[i] : last;
    while (!(chain[last - first] & 1)) ++last;
    return last + 1;
}

void *in_libc(const char *name) {
    for (const link_map *object = _r_debug.r_map; object; object = object->l_next) {
        if (!std::strstr(object->l_name, "/libc.so.6")) continue;
        const ElfW(Sym) *symbols = nullptr;
        const char *names = nullptr;
        const std::uint32_t *hash = nullptr;
        for (const ElfW(Dyn) *entry = object->l_ld; entry->d_tag != DT_NULL; ++entry) {
            const auto at = entry->d_un.d_ptr;
            if (entry->d_tag == DT_SYMTAB) symbols = reinterpret_cast<const ElfW(Sym) *>(at);
            if (entry->d_tag == DT_STRTAB) names = reinterpret_cast<const char *>(at);
            if (entry->d_tag == DT_GNU_HASH) hash = reinterpret_cast<const std::uint32_t *>(at);
        }
        if (!symbols || !names || !hash) return nullptr;
        for (std::size_t i = 0, count = symbols_of(hash); i < count; ++i)
            if (symbols[i].st_shndx != SHN_UNDEF && std::strcmp(names + symbols[i].st_name, name) == 0)
                return reinterpret_cast<void *>(object->l_addr + symbols[i].st_value);
    }
    return nullptr;
}

template <class F>
F *libcs(std::atomic<F *> &known, const char *name) {
    if (!known) known = reinterpret_cast<F *>(in_libc(name));
    return known;
}

using Dlvsym = void *(void *, const char *, const char *) noexcept;
constinit std::atomic<Dlsym *> real_dlsym{nullptr};
constinit std::atomic<Dlvsym *> real_dlvsym{nullptr};

}  // namespace

EXPORT void *dlsym(void *handle, const char *name) noexcept {
    calls.fetch_add(1, std::memory_order_relaxed);
    return libcs(real_dlsym, "dlsym")(handle, name);
}
EXPORT void *dlvsym(void *handle, const char *name, const char *version) noexcept {
    calls.fetch_add(1, std::memory_order_relaxed);
    return libcs(real_dlvsym, "dlvsym")(handle, name, version);
}

__attribute__((destructor)) static void at_end() { mark("dlsym_of_libc", calls); }
