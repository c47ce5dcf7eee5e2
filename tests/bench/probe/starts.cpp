// Starts programs and waits for their end. This process is bare; the words have the preload of the programs.

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "driver.hpp"
#include "probe.hpp"

namespace bench {

namespace {

std::vector<char *> pointers(const std::vector<std::string> &words) {
    std::vector<char *> list;
    for (const std::string &word : words) list.push_back(const_cast<char *>(word.c_str()));
    list.push_back(nullptr);
    return list;
}

// Runs the command with its output discarded. Throws Cannot unless it ends with status 0.
void run(const std::vector<std::string> &command, const std::vector<std::string> &environment) {
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    pid_t child = 0;
    const int error = posix_spawnp(&child, command[0].c_str(), &files, nullptr, pointers(command).data(),
                                   pointers(environment).data());
    posix_spawn_file_actions_destroy(&files);
    if (error != 0) throw Cannot(command[0] + " cannot be started");
    int status = 0;
    if (waitpid(child, &status, 0) != child || status != 0)
        throw Cannot(command[0] + " ended with wait status " + std::to_string(status));
}

// Returns the environment of this process without LD_PRELOAD.
std::vector<std::string> bare_environment() {
    std::vector<std::string> kept;
    for (char **variable = environ; *variable; ++variable)
        if (!std::string_view(*variable).starts_with("LD_PRELOAD=")) kept.emplace_back(*variable);
    return kept;
}

// NAME=VALUE... -- COMMAND...
Sample starts(Words words) {
    const auto middle = std::find(words.begin(), words.end(), "--");
    if (middle == words.end()) throw Cannot("there is no -- before the command");
    std::vector<std::string> environment = bare_environment();
    environment.insert(environment.end(), words.begin(), middle);
    const std::vector<std::string> command(middle + 1, words.end());
    run(command, environment);  // now its files are in the page cache
    return loop([=] { run(command, environment); });
}

constexpr Probe kProbes[] = {{"starts", 2, starts}};

}  // namespace

std::span<const Probe> start_probes() { return kProbes; }

}  // namespace bench
