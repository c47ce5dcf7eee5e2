// Replaces a file at once, so that no reader sees half of it.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

namespace curb::cli {

// Writes `text` to a new file beside `path`, syncs it to the disk and renames it. The file gets `mode` whatever the
// umask is. Returns what went wrong; the old file is then unchanged and the new one removed. nullopt if nothing did.
std::optional<std::string> replace_file(const std::string &path, const std::string &text, mode_t mode = 0644);

}  // namespace curb::cli
