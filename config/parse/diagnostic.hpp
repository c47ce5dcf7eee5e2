// The diagnostic for too little memory. Private to config/.
#pragma once

#include <string_view>

#include "config/load.hpp"

namespace curb::config {

// Returns the diagnostic. An empty list if there is too little memory even for that.
Diagnostics out_of_memory(std::string_view file) noexcept;

}  // namespace curb::config
