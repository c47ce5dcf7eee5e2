#include "terminal/format.hpp"

#include <fmt/format.h>

namespace curb::cli::fmt {

std::string formatted(::fmt::string_view text, ::fmt::format_args values) { return ::fmt::vformat(text, values); }

}  // namespace curb::cli::fmt
