// The machine's ceiling holds against the user's wish, so it is read only if nobody but root can have written it.
// Private to config/.
#pragma once

#include <optional>
#include <string>

#include "config/load.hpp"

namespace curb::config {

// The ceiling's text; none: the machine has no ceiling. Whatever else keeps it from being read, or trusted, is an
// error: a limit that fails open is none. May throw std::bad_alloc.
policy::Result<std::optional<std::string>, Diagnostic> read_ceiling(const std::string &path);

}  // namespace curb::config
