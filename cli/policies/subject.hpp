// Finds out which program a command will be, before it runs: rules match programs, not the words that were typed.
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

// A command as the kernel would start it. Programs that it starts in turn are not part of it.
struct Program {
    std::string file;                              // absolute, symbolic links followed; as typed if it cannot be run
    std::vector<std::string> arguments;            // without the program itself
    std::map<std::string, std::string> variables;  // that its "#!" line sets, by way of env
    std::vector<std::string> scripts;              // on the way to the file: `./train.py: "#!/usr/bin/env python3"`
    std::string fault;                             // why it cannot be run; empty: it can
};

// Finds the file as execvp does: in PATH, and through "#!" lines. Follows a line that names env to the program that env
// starts. `command` is not empty.
Program program_of(const std::vector<std::string> &command, const Environment &environment);

// Returns the subject for that program, run by this user in this environment. Both must outlive the subject.
config::WhoIs who_is(const Program &program, const Environment &environment);

}  // namespace curb::cli
