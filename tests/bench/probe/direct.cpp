// The driver's own functions, before which no preload stands. A preload answers dlsym, so they are looked up without
// it: in the symbol table of the libcuda.so.1 that is loaded, whose names carry no versions.

#include <elf.h>
#include <link.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>

#include "driver.hpp"

namespace bench {

namespace {

struct Symbols {
    ElfW(Addr) base = 0;
    const ElfW(Sym) *first = nullptr;
    std::size_t count = 0;
    const char *names = nullptr;
};

// DT_HASH says how many symbols there are. By DT_GNU_HASH the last one is the end of the last chain.
std::size_t counted(const std::uint32_t *gnu_hash) {
    const std::uint32_t buckets = gnu_hash[0], first = gnu_hash[1], bloom_words = gnu_hash[2];
    const std::uint32_t *const bucket = gnu_hash + 4 + bloom_words * sizeof(ElfW(Addr)) / sizeof(std::uint32_t);
    const std::uint32_t *const chain = bucket + buckets;
    std::uint32_t last = *std::max_element(bucket, bucket + buckets);
    if (last < first) return first;
    while (!(chain[last - first] & 1)) ++last;
    return last + 1;
}

// glibc has made addresses of what the dynamic section says.
Symbols symbols_of(ElfW(Addr) base, const ElfW(Dyn) * section) {
    Symbols found{.base = base};
    for (const ElfW(Dyn) *entry = section; entry->d_tag != DT_NULL; ++entry) {
        const void *table = reinterpret_cast<const void *>(entry->d_un.d_ptr);
        if (entry->d_tag == DT_SYMTAB) found.first = static_cast<const ElfW(Sym) *>(table);
        if (entry->d_tag == DT_STRTAB) found.names = static_cast<const char *>(table);
        if (entry->d_tag == DT_HASH) found.count = static_cast<const std::uint32_t *>(table)[1];
        if (entry->d_tag == DT_GNU_HASH) found.count = counted(static_cast<const std::uint32_t *>(table));
    }
    return found;
}

int if_driver(dl_phdr_info *object, std::size_t, void *found) {
    const std::string_view path = object->dlpi_name;
    if (path.substr(path.rfind('/') + 1) != "libcuda.so.1") return 0;
    for (int i = 0; i < object->dlpi_phnum; ++i)
        if (const auto &part = object->dlpi_phdr[i]; part.p_type == PT_DYNAMIC)
            *static_cast<Symbols *>(found) =
                symbols_of(object->dlpi_addr, reinterpret_cast<const ElfW(Dyn) *>(object->dlpi_addr + part.p_vaddr));
    return 1;
}

void *address(const Symbols &symbols, std::string_view name) {
    for (const ElfW(Sym) & symbol : std::span(symbols.first, symbols.count))
        if (symbol.st_shndx != SHN_UNDEF && ELF64_ST_TYPE(symbol.st_info) == STT_FUNC &&
            name == symbols.names + symbol.st_name)
            return reinterpret_cast<void *>(symbols.base + symbol.st_value);
    return nullptr;
}

Direct load() {
    Direct own{.functions = driver(), .missing = ""};
    Symbols symbols;
    dl_iterate_phdr(if_driver, &symbols);
    if (!symbols.first || !symbols.names) own.missing = "no libcuda.so.1 among what is loaded";
#define BENCH_FIND(name)                                                               \
    own.functions.name = reinterpret_cast<decltype(&::name)>(address(symbols, #name)); \
    if (!own.functions.name && own.missing.empty()) own.missing = "no " #name " in libcuda.so.1";
    BENCH_FUNCTIONS(BENCH_FIND)
#undef BENCH_FIND
    return own;
}

}  // namespace

const Direct &direct() {
    static const Direct own = load();
    return own;
}

}  // namespace bench
