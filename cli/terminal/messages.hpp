// What the command says about itself on stderr, each line behind "curb: ". Answers go to stdout (terminal.hpp).
//
// All go through one logger of spdlog. Its level is info; CURB_LOG sets another, --verbose debug. Errors are always
// printed. Control characters do not reach the terminal. Thread-safe. Drops a message if host memory is exhausted.
#pragma once

#include <string_view>

namespace curb::cli::say {

void error(std::string_view message) noexcept;    // the command failed, or a part of it
void warning(std::string_view message) noexcept;  // it goes on, perhaps not as wanted
void hint(std::string_view message) noexcept;     // info: what users may want to know or do
void detail(std::string_view message) noexcept;   // debug: what curb does, with --verbose

void only_errors() noexcept;  // --quiet
void all() noexcept;          // --verbose

}  // namespace curb::cli::say
