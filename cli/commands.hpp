// The subcommands of curb: each takes its options as a struct and returns the exit status.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace curb::cli {

// As of env, nohup and timeout: what the program itself returns stays below these.
inline constexpr int kFailure = 125;  // curb could not do what was asked
inline constexpr int kNotExecutable = 126;
inline constexpr int kNotFound = 127;

struct RunOptions {
    std::optional<std::string> cap;     // --cap
    std::optional<std::string> policy;  // --policy
    bool sim = false;
    bool dry_run = false;
    std::vector<std::string> command;
};
// Becomes the command, so it returns only when it could not (or with dry_run).
int run(const RunOptions &options);

struct CheckOptions {
    std::string file;  // "-": standard input
    bool json = false;
};
// 0: valid, 1: not.
int policy_check(const CheckOptions &options);

// One line on stderr, after "curb: ".
void complain(std::string_view message);

}  // namespace curb::cli
