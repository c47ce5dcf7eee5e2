// The header of an ELF file, as far as it says who can load it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace curb::cli {

struct Elf {
    int bits = 0;               // 32, 64
    std::uint16_t machine = 0;  // EM_X86_64, …
    bool shared = false;        // a shared object, or a program that can be moved
    std::string interpreter;    // "/lib64/ld-linux-x86-64.so.2"; empty: none, so nothing is loaded into it
    friend bool operator==(const Elf &, const Elf &) = default;
};
// Nothing: it cannot be read, or is no ELF file of this machine's byte order.
std::optional<Elf> read_elf(const std::string &path);

// "x86-64", "aarch64", "32-bit x86"; of others their number.
std::string architecture_of(const Elf &elf);

}  // namespace curb::cli
