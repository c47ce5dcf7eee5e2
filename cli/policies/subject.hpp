// Finds the program that a command will execute: rules match programs, not the typed words.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "config/load.hpp"
#include "policy/rules.hpp"

namespace curb::cli {

// Returns the value of a variable. null if it is unset.
using Environment = std::function<const char *(const char *)>;

// The program that the kernel would start for a command.
struct Program {
    std::string file;                    // absolute, symbolic links followed; as typed if it cannot be executed
    std::vector<std::string> arguments;  // without the program itself
    std::map<std::string, std::string> variables;  // set by env in its "#!" line
    std::vector<std::string> scripts;              // that lead to the file: `./train.py: "#!/usr/bin/env python3"`
    std::string fault;                             // why it cannot be executed; empty: it can
};

// Finds the file as execvp does: in PATH, and through "#!" lines, with env replaced by the program that it starts.
// Precondition: `command` is not empty.
Program program_of(const std::vector<std::string> &command, const Environment &environment);

// Returns the subject for the program, run by this user in this environment. Both arguments must outlive the subject.
config::WhoIs who_is(const Program &program, const Environment &environment);

}  // namespace curb::cli
