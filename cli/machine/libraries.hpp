// Files that programs load: ELF headers, the paths of curb's own libraries, and whether LD_PRELOAD can carry them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "policy/values/result.hpp"

namespace curb::cli {

struct Elf {
    int bits = 0;               // 32, 64
    std::uint16_t machine = 0;  // EM_X86_64, …
    std::string interpreter;    // "/lib64/ld-linux-x86-64.so.2"; empty: none, so LD_PRELOAD has no effect
    std::string version;        // curb's version, if it is a file of curb (control/version_note.hpp); else empty
    [[nodiscard]] bool is_static() const { return interpreter.empty(); }
    [[nodiscard]] bool uses_musl() const { return interpreter.find("/ld-musl-") != std::string::npos; }
    friend bool operator==(const Elf &, const Elf &) = default;
};
// Returns nullopt if the file cannot be read, or is not an ELF file of this machine's byte order.
std::optional<Elf> read_elf(const std::string &path);

// Returns the first bytes of a regular file, at most `most`. Empty if it cannot be read or is another kind of file: a
// path in a container may lead to a FIFO, and a file there may be of any size.
std::string read_regular_file(const std::string &path, std::size_t most);

// True if the file system of the path is mounted with the flag: ST_NOEXEC, ST_NOSUID.
bool is_mounted(const std::string &path, unsigned long flag);

bool same_architecture(const Elf &a, const Elf &b);
// Returns "x86-64", "aarch64", "32-bit x86", …; for others the number of the machine.
std::string architecture_of(const Elf &elf);

// Returns the file of this command, without symbolic links.
std::filesystem::path own_file();
// Returns CURB_LIBRARY, else the libcurb.so installed with this command. The error has the paths and the remedy.
policy::Result<std::filesystem::path, std::string> find_library();
// Returns the libcurb.so that the `curb` in prefix/bin uses, unless CURB_LIBRARY names another.
policy::Result<std::filesystem::path, std::string> find_library_under(const std::filesystem::path &prefix);
// Returns the folder of the simulated driver.
policy::Result<std::filesystem::path, std::string> find_sim();

// Returns why the variable `list` cannot name the path: the path contains a separator. nullopt if it can.
inline constexpr std::string_view kPreloadSeparators = " :$";
inline constexpr std::string_view kLibraryPathSeparators = ":;$";
std::optional<std::string> not_carried(const std::filesystem::path &path, const char *list,
                                       std::string_view separators);

}  // namespace curb::cli
