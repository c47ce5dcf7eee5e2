// Runs build/bin/curb, for tests of the command line. It preloads the C library, which changes nothing: these tests are
// about how a program starts, not about libcurb.so.
#pragma once

#include "start.hpp"

inline Outcome curb(Words words, std::map<std::string, std::string> environment = {}) {
    words.insert(words.begin(), CURB_BINARY);
    environment.emplace("CURB_LIBRARY", harmless_library());
    return start({words, environment});
}
