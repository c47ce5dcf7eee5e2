// The loaded libraries and their address ranges.
#pragma once

#include <link.h>

#include <algorithm>
#include <cstdint>

namespace curb::shim {

struct Range {
    std::uintptr_t begin = 0, end = 0;  // end: one past the last address; 0 if the range is empty
    [[nodiscard]] bool has(std::uintptr_t address) const noexcept { return address >= begin && address < end; }
    [[nodiscard]] bool has(std::uintptr_t address, std::uintptr_t size) const noexcept {
        return has(address) && size <= end - address;
    }
};

// Returns the range from the library's first loaded segment to its last.
inline Range range_of(const dl_phdr_info &info) noexcept {
    Range range{~std::uintptr_t{0}, 0};
    for (int i = 0; i < info.dlpi_phnum; ++i) {
        const auto &segment = info.dlpi_phdr[i];
        if (segment.p_type != PT_LOAD) continue;
        range.begin = std::min<std::uintptr_t>(range.begin, info.dlpi_addr + segment.p_vaddr);
        range.end = std::max<std::uintptr_t>(range.end, info.dlpi_addr + segment.p_vaddr + segment.p_memsz);
    }
    return range;
}

// Calls `visit(info)` for each loaded library until one call returns true. False if none does. The loader's lock is
// held meanwhile, and the program's allocator may wait for that lock while it holds its own: so `visit` must not
// allocate.
template <class Visit>
bool any_library(Visit visit) noexcept {
    const auto call = [](dl_phdr_info *info, std::size_t, void *with) noexcept -> int {
        return (*static_cast<Visit *>(with))(*info) ? 1 : 0;
    };
    return dl_iterate_phdr(call, &visit) != 0;
}

// Returns the range of the library that contains the address; empty if none does.
inline Range library_around(std::uintptr_t address) noexcept {
    Range range;
    const auto contains = [&](const dl_phdr_info &info) {
        range = range_of(info);
        return range.has(address);
    };
    return any_library(contains) ? range : Range{};
}

// Returns the library's dynamic section; null if it has none.
inline const ElfW(Dyn) * dynamic_of(const dl_phdr_info &info) noexcept {
    for (int i = 0; i < info.dlpi_phnum; ++i)
        if (info.dlpi_phdr[i].p_type == PT_DYNAMIC)
            return reinterpret_cast<const ElfW(Dyn) *>(info.dlpi_addr + info.dlpi_phdr[i].p_vaddr);
    return nullptr;
}

}  // namespace curb::shim
