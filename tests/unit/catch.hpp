// Catch2, version 2 or 3, under the same names. `contains` is the matcher that the versions call differently.
#pragma once

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
