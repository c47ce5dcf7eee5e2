// Files that programs load: what an ELF header says of one, where curb's own are, and whether the loader's lists can
// carry their paths.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "policy/result.hpp"

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

// libcurb.so: what CURB_LIBRARY names, else beside this command. The error says where it was looked for, and the
// remedy.
policy::Result<std::filesystem::path, std::string> find_library();
// The folder of the simulated driver.
policy::Result<std::filesystem::path, std::string> find_sim();

// Why `list`, a variable whose entries are set apart by `separators`, cannot name the path; nothing: it can.
inline constexpr std::string_view kPreloadSeparators = " :$";
inline constexpr std::string_view kLibraryPathSeparators = ":;$";
std::optional<std::string> not_carried(const std::filesystem::path &path, const char *list,
                                       std::string_view separators);

}  // namespace curb::cli
