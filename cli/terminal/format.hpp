// fmt::format for curb's sources. Its implementation, which takes seconds to compile, is in format.cpp alone.
#pragma once

#include <fmt/core.h>

#include <chrono>
#include <string>

#include "policy/values/size.hpp"

namespace curb::cli::fmt {

using ::fmt::format_string;

std::string formatted(::fmt::string_view text, ::fmt::format_args values);

// Returns the text with the values in place of its braces.
template <class... Values>
std::string format(format_string<Values...> text, Values &&...values) {
    return formatted(text, ::fmt::make_format_args(values...));
}

}  // namespace curb::cli::fmt

namespace curb::cli {

using Seconds = std::chrono::duration<double>;

std::string seconds_text(Seconds seconds);                    // "0.012 s", "1.3 s"
std::string rate_text(policy::Bytes bytes, Seconds seconds);  // "2.23 GiB/s"

}  // namespace curb::cli
