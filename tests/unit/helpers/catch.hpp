// Catch2, version 2 or 3, under the same names. `contains` is a matcher that they call differently; `skip` replaces
// version 3's SKIP.
#pragma once

#include <iostream>
#include <string>

#if __has_include(<catch2/catch_test_macros.hpp>)
#include <catch2/catch_approx.hpp>
#include <catch2/catch_message.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/generators/catch_generators_range.hpp>
#include <catch2/matchers/catch_matchers.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

inline auto contains(const std::string &part) { return Catch::Matchers::ContainsSubstring(part); }
#else
#include <catch2/catch.hpp>

inline auto contains(const std::string &part) { return Catch::Matchers::Contains(part); }
#endif

// Returns the error of a result; "none" if it has a value.
template <class Result>
std::string error_of(const Result &result) {
    return result ? std::string("none") : result.error();
}

// Prints why a case, or the rest of it, cannot run here: `return skip("…")`. scripts/test repeats the line at its end.
inline void skip(const std::string &why) {
    std::cout << "skipped: " << Catch::getResultCapture().getCurrentTestName() << ": " << why << std::endl;
}
