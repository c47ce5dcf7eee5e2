// Files that programs load: ELF headers, the paths of curb's own libraries, and whether LD_PRELOAD can carry them.
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
    std::string interpreter;    // "/lib64/ld-linux-x86-64.so.2"; empty: none, so nothing is loaded into it
    std::string version;        // of curb, if it is a file of curb (control/version_note.hpp); empty: it names none
    friend bool operator==(const Elf &, const Elf &) = default;
};
// nullopt if it cannot be read, or is not an ELF file of this machine's byte order.
std::optional<Elf> read_elf(const std::string &path);

bool same_architecture(const Elf &a, const Elf &b);
// "x86-64", "aarch64", "32-bit x86"; of others their number.
std::string architecture_of(const Elf &elf);

// Returns the path of libcurb.so: CURB_LIBRARY, else beside this command. The error has the paths and the remedy.
policy::Result<std::filesystem::path, std::string> find_library();
// Returns the libcurb.so that the `curb` in prefix/bin uses, unless CURB_LIBRARY names another.
policy::Result<std::filesystem::path, std::string> find_library_under(const std::filesystem::path &prefix);
// Returns the folder of the simulated driver.
policy::Result<std::filesystem::path, std::string> find_sim();

// Returns why `list`, a variable whose entries `separators` separate, cannot name the path. nullopt if it can.
inline constexpr std::string_view kPreloadSeparators = " :$";
inline constexpr std::string_view kLibraryPathSeparators = ":;$";
std::optional<std::string> not_carried(const std::filesystem::path &path, const char *list,
                                       std::string_view separators);

}  // namespace curb::cli
