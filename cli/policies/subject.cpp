#include "policies/subject.hpp"

#include <elf.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>

#include "policy/values/words.hpp"
#include "terminal/terminal.hpp"

namespace curb::cli {
namespace {

constexpr std::string_view kBlanks = " \t";
constexpr int kDeepest = 5;  // the kernel's limit of scripts that interpret scripts (fs/exec.c)

std::string why_not(const std::string &name) {
    const bool there = name.find('/') != std::string::npos && ::access(name.c_str(), F_OK) == 0;
    return policy::quote(name) + (there ? " cannot be executed" : " was not found");
}

// Returns the absolute path without symbolic links; the path itself if it leads nowhere.
std::string resolved(const std::string &path) {
    std::error_code error;
    const auto real = std::filesystem::canonical(path, error);
    return error ? path : real.string();
}

// The first line of a script: "#!", the interpreter and at most one argument.
struct Script {
    std::string line;
    std::string interpreter;
    std::string argument;
};
std::optional<Script> script(const std::string &path) {
    std::array<char, 256> head{};  // as much as the kernel reads
    std::ifstream file(path, std::ios::binary);
    file.read(head.data(), head.size() - 1);
    const std::string_view text(head.data(), static_cast<std::size_t>(file.gcount()));
    if (!file.is_open() || text.starts_with(ELFMAG)) return std::nullopt;
    if (!text.starts_with("#!")) return Script{"no #! line", "/bin/sh", ""};  // execvp starts /bin/sh then
    const std::string_view line = policy::trimmed(text.substr(2, text.find('\n') - 2), kBlanks);
    const std::size_t end = std::min(line.find_first_of(kBlanks), line.size());
    std::string interpreter(line.substr(0, end));
    if (interpreter.find('/') == std::string::npos) interpreter.insert(0, "./");  // the kernel does not look in PATH
    return Script{"#!" + std::string(line), std::move(interpreter),
                  std::string(policy::trimmed(line.substr(end), kBlanks))};
}

// Returns the words that env would execute: "python3" for `env python3`; "python3", "-u" for `env -S python3 -u`. Empty
// if that depends on other options of env.
std::vector<std::string> words_of_env(std::string_view argument) {
    if (!argument.starts_with("-S"))
        return argument.empty() || argument.find_first_of("-= \t") != std::string_view::npos
                   ? std::vector<std::string>()
                   : std::vector<std::string>{std::string(argument)};
    argument.remove_prefix(2);
    if (argument.find_first_of("\"'\\$#") != std::string_view::npos) return {};
    std::istringstream stream{std::string(argument)};
    std::vector<std::string> words;
    for (std::string word; stream >> word;) words.push_back(std::move(word));
    return words;
}

// Replaces env by the program that it starts, if the argument names it.
void follow_env(Script &step, std::vector<std::string> &before, Program &program) {
    std::vector<std::string> words = words_of_env(step.argument);
    auto word = words.begin();
    std::map<std::string, std::string> variables;
    for (; word != words.end() && word->find('=') != std::string::npos; ++word) {
        const std::size_t sign = word->find('=');
        variables[word->substr(0, sign)] = word->substr(sign + 1);
    }
    if (word == words.end() || word->starts_with("-")) return;
    step.interpreter = *word;
    before.assign(word + 1, words.end());
    program.variables.insert(variables.begin(), variables.end());
}

}  // namespace

Program program_of(const std::vector<std::string> &command, const Environment &environment) {
    const Program typed{command.front(), {command.begin() + 1, command.end()}, {}, {}, {}};
    Program program = typed;
    std::string name = command.front();
    const char *path = environment("PATH");
    for (int depth = 0; depth <= kDeepest; ++depth) {
        const auto file = find_program(name, path != nullptr ? path : "/bin:/usr/bin");
        if (!file) break;
        auto step = script(*file);
        if (!step) {
            program.file = resolved(*file);
            return program;
        }
        program.scripts.push_back(*file + ": " + policy::quote(step->line, '"'));
        std::vector<std::string> before;
        if (!step->argument.empty()) before.push_back(step->argument);
        if (step->interpreter.ends_with("/env")) follow_env(*step, before, program);
        before.push_back(*file);
        program.arguments.insert(program.arguments.begin(), before.begin(), before.end());
        name = step->interpreter;
    }
    Program out = typed;
    out.scripts = std::move(program.scripts);
    out.fault = why_not(name);
    return out;
}

config::WhoIs who_is(const Program &program, const Environment &environment) {
    return [&](bool with_user) {
        policy::Subject subject = config::this_process(with_user);
        subject.exe = program.file;
        subject.args = policy::joined(program.arguments, " ");
        subject.environment = [&](const char *name) {
            const auto set = program.variables.find(name);
            return set != program.variables.end() ? set->second.c_str() : environment(name);
        };
        return subject;
    };
}

}  // namespace curb::cli
