// A file that takes another's place at once, so that nobody ever reads half of it.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

namespace curb::cli {

// Writes `text` to a new file beside `path` (its name has another ending), puts it on the disk and renames it. The mode
// is the new file's whatever the umask is; by itself, others read it. What went wrong, if anything: then what was there
// is there still, and the new file is not.
std::optional<std::string> replace_file(const std::string &path, const std::string &text, mode_t mode = 0644);

}  // namespace curb::cli
