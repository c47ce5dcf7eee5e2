#include "library.hpp"

#include <elf.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <utility>
#include <vector>

#include "policy/words.hpp"

namespace curb::cli {
namespace {

namespace fs = std::filesystem;
using Found = policy::Result<fs::path, std::string>;

// The directory that holds bin/, lib/ and sim/.
fs::path prefix() {
    std::error_code error;
    const fs::path self = fs::read_symlink("/proc/self/exe", error);
    return self.parent_path().parent_path();
}

bool is_elf(const fs::path &path) {
    std::error_code error;
    if (!fs::is_regular_file(path, error)) return false;
    char magic[SELFMAG] = {};
    std::ifstream(path, std::ios::binary).read(magic, sizeof magic);
    return std::memcmp(magic, ELFMAG, sizeof magic) == 0;
}

// The first that is there, or where it was looked for.
Found first_of(const std::vector<fs::path> &candidates, const char *what, const char *remedy) {
    std::string error = std::string("there is no ") + what + " (looked for";
    const char *separator = " ";
    for (const fs::path &candidate : candidates) {
        if (is_elf(candidate)) return candidate;
        error.append(separator).append(candidate.native());
        separator = ", ";
    }
    return error + "); " + remedy;
}

}  // namespace

Found find_library() {
    constexpr const char *kName = "libcurb.so";
    if (const char *named = std::getenv("CURB_LIBRARY"); named != nullptr && *named != '\0') {
        return first_of({fs::absolute(named)}, "shared library that CURB_LIBRARY names",
                        "correct or unset CURB_LIBRARY");
    }
    const fs::path lib = prefix() / "lib";
    std::vector<fs::path> candidates{lib / kName, lib / "curb" / kName};
    std::error_code error;
    for (fs::directory_iterator entry(lib, error), end; !error && entry != end; entry.increment(error)) {
        fs::path multiarch = entry->path() / "curb" / kName;  // lib/x86_64-linux-gnu/curb/libcurb.so
        if (is_elf(multiarch)) candidates.push_back(std::move(multiarch));
    }
    return first_of(candidates, kName, "set CURB_LIBRARY to its path");
}

Found find_sim() {
    constexpr const char *kDriver = "libcuda.so.1";
    const auto driver = first_of({prefix() / "sim" / kDriver, prefix() / "lib" / "curb" / "sim" / kDriver},
                                 "simulated driver", "build it (it comes with curb), or run without --sim");
    if (!driver) return driver.error();
    return driver->parent_path();
}

std::optional<std::string> not_carried(const fs::path &path, const char *list, std::string_view separators) {
    const std::size_t at = path.native().find_first_of(separators);
    if (at == std::string::npos) return std::nullopt;
    return std::string(list) + " cannot carry the path '" + policy::one_line(path.native()) + "', because of the " +
           policy::quote(path.native().substr(at, 1)) + " in it; install curb under a path without it";
}

}  // namespace curb::cli
