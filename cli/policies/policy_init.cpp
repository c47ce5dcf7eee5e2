// `curb policy init`: writes a policy to start from, with comments.

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "command/command.hpp"
#include "policy/values/words.hpp"
#include "terminal/format.hpp"
#include "terminal/terminal.hpp"

namespace curb::cli {
namespace {

// Valid as it is, and after any of its commented fields is enabled.
constexpr const char *kFirstPolicy =
    R"curb(// A policy for curb. Every line of it may be edited while programs run under it; curb policy check finds mistakes.
// All fields: man curb-policy.
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
      }
      // "cache": { "max": "1GiB" }     // keep freed memory for the next request of the same size
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

struct InitOptions {
    std::string file = "policy.json";

    void declare(Options &takes) {
        takes.argument("FILE", file, "File to write, policy.json if none is named; -: standard output",
                       Options::Need::optional);
    }
};

// Writes a new file, or none. Returns 0 or the error. Never replaces a file: it may be the policy of a running program.
int write_new(const std::string &path) {
    std::FILE *file = std::fopen(path.c_str(), "wx");
    if (!file) return errno;
    int error = std::fputs(kFirstPolicy, file) < 0 || std::fflush(file) != 0 ? errno : 0;
    if (std::fclose(file) != 0 && error == 0) error = errno;  // some file systems report a full disk only now
    if (error != 0) std::remove(path.c_str());
    return error;
}

int policy_init(const InitOptions &options) {
    if (options.file == "-") {
        print(kFirstPolicy);
        return 0;
    }
    const std::string name = policy::quote(options.file);
    const int error = write_new(options.file);
    if (error == EEXIST)
        return failed(name + " exists already; name another file, or print the policy: curb policy init -");
    if (error != 0) return failed(name + " cannot be written: " + std::strerror(error));
    print_text(
        fmt::format("wrote {0}: half of each GPU for each process, for a start\n"
                    "edit it, then: curb policy check {0}\n"
                    "and: curb run --policy {0} -- COMMAND\n",
                    options.file));
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
  curb policy init - | less)",
    .takes = takes<InitOptions, policy_init>,
};

}  // namespace curb::cli
