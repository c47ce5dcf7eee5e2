// The side of a C++ program in a test. talk.py is the same for Python.
#pragma once

#include <cstdio>
#include <cstdlib>

// Prints the call and exits if it fails.
#define MUST(call, succeeded)                                            \
    do {                                                                 \
        if (const auto code_ = (call); code_ != (succeeded)) {           \
            std::fprintf(stderr, "%s returned %d\n", #call, int(code_)); \
            std::exit(3);                                                \
        }                                                                \
    } while (false)

// Returns with the next line of stdin. Exits at its end.
inline void wait_for_command() {
    char line[64];
    if (!std::fgets(line, sizeof line, stdin)) std::exit(4);
}
