// build/bin/curb as a process, for the tests of what is typed. What it preloads here is the C library, which every
// program has anyway: these are about how a program is started, not about what libcurb.so does in it.
#pragma once

#include "start.hpp"

inline Outcome curb(Words words, std::map<std::string, std::string> environment = {}) {
    words.insert(words.begin(), CURB_BINARY);
    environment.emplace("CURB_LIBRARY", harmless_library());
    return start({words, environment, {}, {}, {}});
}
