// Private to config/: the one diagnostic that must work when nothing else does.
#pragma once

#include <string_view>

#include "config/load.hpp"

namespace curb::config {

// What stands in a result's place when memory ran out; an empty list if there is not even enough for that.
Diagnostics out_of_memory(std::string_view file) noexcept;

}  // namespace curb::config
