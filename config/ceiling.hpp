// Reads the machine's ceiling. It limits users against their will, so it counts only if root alone can have written it.
// Private to config/.
#pragma once

#include <optional>
#include <string>

#include "config/load.hpp"

namespace curb::config {

// Returns the text of the ceiling. nullopt if the machine has none. A ceiling that cannot be read or trusted is an
// error, because a limit must not fail open. May throw std::bad_alloc.
policy::Result<std::optional<std::string>, Diagnostic> read_ceiling(const std::string &path);

}  // namespace curb::config
