// How a C++ program under test talks to the test (programs/talk.py is the same for Python).
#pragma once

#include <cstdio>
#include <cstdlib>

// Ends the program if the call fails, and prints the call.
#define MUST(call, succeeded)                                             \
    do {                                                                  \
        if (const auto result = (call); result != (succeeded)) {          \
            std::fprintf(stderr, "%s returned %d\n", #call, int(result)); \
            std::exit(3);                                                 \
        }                                                                 \
    } while (false)

inline void wait_for_command() {
    char line[64];
    if (!std::fgets(line, sizeof line, stdin)) std::exit(4);
}
