// Warns of settings that are valid and probably a mistake. Pure.
#pragma once

#include "config/load.hpp"

namespace curb::cli {

// Returns the warnings in the order of the file.
config::Diagnostics advice(const config::Document &document);

}  // namespace curb::cli
