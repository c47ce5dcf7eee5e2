// `curb policy init`: writes a policy to start from, with comments.

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>

#include "command/command.hpp"
#include "policy/values/words.hpp"
#include "terminal/format.hpp"
#include "terminal/terminal.hpp"

namespace curb::cli {
namespace {

// Valid as it is, and after any of its commented fields is enabled.
constexpr const char *kFirstPolicy =
    R"curb(// A policy for curb. It may be edited while programs run under it; "frameworks" takes effect when a program starts.
// To use a line that begins with //, remove the //; curb policy check finds mistakes. All fields: man curb-policy.
{
  "version": 1,
  "gpu": {
    "*": {                              // every GPU; or "cuda:0", "nvml:0" (nvidia-smi's index), "GPU-8f3a..."
      "cap": "50%",                     // the most memory that one process holds of it: "8GiB", "75%"
      "growth": {
        // "start": "2GiB",             // begin small,
        // "step": "1GiB",              // grow by this when the program needs more,
        // "every": "10s",              // at most once in this time
        // "keep_free": "4GiB",         // leave this much of the GPU free for others
        "wait": "30s"                   // a request waits up to this long for memory before it fails
      },
      // "cache": { "max": "1GiB" },    // keep freed memory for the next request of the same size
      "report": "cap"                   // the size of the GPU that programs see: "cap", or "device"
    }
  },
  "release": {
    // "idle": "10m",                   // release cached memory when the GPU was not used for so long
    "signal": "SIGUSR1"                 // kill -USR1 PID releases cached memory at once
  },
  "frameworks": {
    "steer": true                       // TensorFlow, JAX and PyTorch take memory as they need it, and can give it back
  },
  "log": {
    // "file": "/tmp/curb-%p.log",      // else standard error; %p stands for the pid
    "level": "warning"                  // "info": also releases, growth steps, waiting requests
  },
  "rules": [
    // The first rule that matches a process overrides the rest of the file for it.
    // { "match": { "args": "*train_bert*", "user": "alice" }, "gpu": { "*": { "cap": "20GiB" } } }
  ]
}
)curb";

// {0}: how many users, {1}: the share of each in percent.
constexpr const char *kCeiling =
    R"curb(// The ceiling of a machine that {0} users share: what no policy of theirs can exceed. As root:
//   install -D -o root -g root -m 644 FILE /etc/curb/policy.json     in force within a second, in running programs too
//   curb-preload install                                             every program of the machine runs under curb
// Deleted, invalid or unreadable, it stays as it was for running programs. Those that start have no ceiling if it is
// deleted, and get no GPU memory if it is invalid or unreadable. All fields: man curb-policy.
{{
  "version": 1,
  "job": {{
    "cap": "{1}%",                       // of each GPU, for all processes of a user together; 1/{0} for each user. More is
    "of": "user"                        // possible where users are seldom busy at the same time: those who wait are served
  }},                                    // when idle ones leave
  "gpu": {{ "*": {{ "growth": {{
    "wait": "30s"                       // a request that finds no room waits so long before it fails; users may set their own
  }} }} }},
  "suspend": {{
    // "turn": "1m",                    // busy programs that do not fit together have the GPU for so long at a time
    "when_others_wait": "2s",           // who is idle for so long leaves the GPU if another user's request waits for it,
    "idle": "30m"                       // and after this time in any case; the next call of CUDA brings it back
    // "host_memory": "25%"             // the most of the host's memory that one process may take meanwhile
  }},
  // "share": "order",                  // users see that others wait, but not who holds how much
  "rules": [
    // The first rule that matches a process overrides the rest of the file for it.
    // {{ "match": {{ "user": "alice" }}, "job": {{ "cap": "50%" }} }},
    {{ "name": "who keeps the machine", "match": {{ "user": "root" }}, "job": {{ "cap": "100%" }} }}
  ]
}}
)curb";

struct InitOptions {
    std::string file = "policy.json";
    std::optional<std::string> machine;

    void declare(Options &takes) {
        takes.option("--machine", machine, "USERS", "The ceiling of a machine that so many users share");
        takes.argument("FILE", file, "File to write, policy.json if none is named; -: standard output");
    }
};

// Writes a new file, or none. Returns 0 or the error. Never replaces a file: it may be the policy of a running program.
int write_new(const std::string &path, const std::string &text) {
    std::FILE *file = std::fopen(path.c_str(), "wx");
    if (!file) return errno;
    int error = std::fputs(text.c_str(), file) < 0 || std::fflush(file) != 0 ? errno : 0;
    if (std::fclose(file) != 0 && error == 0) error = errno;  // some file systems report a full disk only now
    if (error != 0) std::remove(path.c_str());
    return error;
}

int policy_init(const InitOptions &options) {
    constexpr int kMostUsers = 100;
    std::string text = kFirstPolicy, what = "half of each GPU for each process";
    std::string next = fmt::format("and: curb run --policy {} -- COMMAND\n", options.file);
    if (options.machine) {
        const auto users = policy::whole_number<int>(*options.machine);
        if (!users || *users < 1 || *users > kMostUsers)
            return failed("--machine: " + policy::quote(*options.machine) +
                          " is no number of users; write one from 1 to 100");
        const int share = 100 / *users;
        text = fmt::format(kCeiling, *users, share);
        what = fmt::format("{}% of each GPU for each of {} users", share, *users);
        next = fmt::format("and as root: install -D -o root -g root -m 644 {} /etc/curb/policy.json\n", options.file);
    }
    if (options.file == "-") {
        print(text);
        return 0;
    }
    const std::string name = policy::quote(options.file);
    const int error = write_new(options.file, text);
    if (error == EEXIST)
        return failed(name + " exists already; name another file, or print the policy: curb policy init -");
    if (error != 0) return failed(name + " cannot be written: " + std::strerror(error));
    print_text(fmt::format("wrote {0}: {1}, for a start\nedit it, then: curb policy check {0}\n{2}", options.file, what,
                           next));
    return 0;
}

}  // namespace

extern const Command kPolicyInit{
    .group = "policy",
    .name = "init",
    .line = "Write a policy to start from, with comments",
    .help = R"(
The policy is valid as it stands. A file that exists is not replaced: exit status 125.

Examples:
  curb policy init                            writes policy.json
  curb policy init ~/.config/curb/policy.json    the policy of all your programs that run under curb
  curb policy init --machine 5 ceiling.json   the ceiling of a machine for five users
  curb policy init - | less)",
    .takes = takes<InitOptions, policy_init>,
};

}  // namespace curb::cli
