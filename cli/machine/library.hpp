// The files of curb that programs get: where they are, and whether the loader's lists can carry their paths.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "policy/result.hpp"

namespace curb::cli {

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
