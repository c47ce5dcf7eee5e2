#include "terminal/format.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace curb::cli::fmt {

std::string formatted(::fmt::string_view text, ::fmt::format_args values) { return ::fmt::vformat(text, values); }

}  // namespace curb::cli::fmt

namespace curb::cli {

std::string seconds_text(Seconds seconds) {
    return fmt::format("{:.{}f} s", seconds.count(), seconds.count() < 0.1 ? 3 : 1);
}

std::string rate_text(policy::Bytes bytes, Seconds seconds) {
    const double rate = static_cast<double>(bytes) / std::max(seconds.count(), 1e-3);
    return policy::format_human(static_cast<policy::Bytes>(rate)) + "/s";
}

}  // namespace curb::cli
