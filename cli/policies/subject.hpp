// Who a command will be once it runs, before it does: for the rules of policies, which are about programs, not about
// what was typed.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "config/load.hpp"
#include "policy/rules.hpp"

namespace curb::cli {

// Looks one variable up; null: unset.
using Environment = std::function<const char *(const char *)>;

// A command as the kernel would start it. The programs that it starts in turn are others.
struct Program {
    std::string file;                              // absolute, symbolic links followed; as typed if it cannot be run
    std::vector<std::string> arguments;            // without the program itself
    std::map<std::string, std::string> variables;  // that its "#!" line sets, by way of env
    std::vector<std::string> scripts;              // on the way to the file: `./train.py: "#!/usr/bin/env python3"`
    std::string fault;                             // why it cannot be run; empty: it can
};

// Finds the file as execvp does: in PATH, and through "#!" lines. One that names env is followed to the program that
// env starts. `command` is not empty.
Program program_of(const std::vector<std::string> &command, const Environment &environment);

// That program, run by this user in this environment. It and `environment` must live as long as the subject is used.
config::WhoIs who_is(const Program &program, const Environment &environment);

}  // namespace curb::cli
