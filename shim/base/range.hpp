// Address ranges of loaded libraries.
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

}  // namespace curb::shim
