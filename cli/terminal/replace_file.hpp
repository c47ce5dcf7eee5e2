// Replaces a file atomically, so that no reader sees half of it.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

namespace curb::cli {

// Writes `text` to a new file beside `path`, syncs it to the disk and renames it. Sets `mode` regardless of the umask.
// Returns the error; the old file is then unchanged and the new one removed. Returns nullopt on success.
std::optional<std::string> replace_file(const std::string &path, const std::string &text, mode_t mode = 0644);

}  // namespace curb::cli
