// Finds a function in the symbol table of a loaded library. dlsym would give the function of a preload.
#pragma once

#include <elf.h>
#include <link.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

// Returns the number of symbols by DT_GNU_HASH, which does not store it: the last chain ends with the last symbol.
inline std::size_t counted_symbols(const std::uint32_t *gnu_hash) {
    const std::uint32_t buckets = gnu_hash[0], first = gnu_hash[1], bloom_words = gnu_hash[2];
    const std::uint32_t *const bucket = gnu_hash + 4 + bloom_words * sizeof(ElfW(Addr)) / sizeof(std::uint32_t);
    const std::uint32_t *const chain = bucket + buckets;
    std::uint32_t last = *std::max_element(bucket, bucket + buckets);
    if (last < first) return first;
    while (!(chain[last - first] & 1)) ++last;
    return last + 1;
}

// Returns nullptr if no loaded library has the file name `library`, or it has no such function. glibc has made the
// entries of the dynamic section absolute addresses.
inline void *own_symbol(std::string_view library, std::string_view name) {
    for (const link_map *object = _r_debug.r_map; object; object = object->l_next) {
        const std::string_view path = object->l_name;
        if (path.substr(path.rfind('/') + 1) != library) continue;
        const ElfW(Sym) *symbols = nullptr;
        const char *names = nullptr;
        std::size_t count = 0;
        for (const ElfW(Dyn) *entry = object->l_ld; entry->d_tag != DT_NULL; ++entry) {
            const void *table = reinterpret_cast<const void *>(entry->d_un.d_ptr);
            if (entry->d_tag == DT_SYMTAB) symbols = static_cast<const ElfW(Sym) *>(table);
            if (entry->d_tag == DT_STRTAB) names = static_cast<const char *>(table);
            if (entry->d_tag == DT_HASH) count = static_cast<const std::uint32_t *>(table)[1];
            if (entry->d_tag == DT_GNU_HASH) count = counted_symbols(static_cast<const std::uint32_t *>(table));
        }
        for (std::size_t i = 0; symbols && names && i < count; ++i)
            if (symbols[i].st_shndx != SHN_UNDEF && name == names + symbols[i].st_name)
                return reinterpret_cast<void *>(object->l_addr + symbols[i].st_value);
    }
    return nullptr;
}
