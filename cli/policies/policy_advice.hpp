// Warns of settings that are valid, but that the author of the policy can hardly have meant. Pure.
#pragma once

#include "config/load.hpp"

namespace curb::cli {

// In the order of the text.
config::Diagnostics advice(const config::Document &document);

}  // namespace curb::cli
