// The commands of curb.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>

#include "command/command.hpp"
#include "control/version_note.hpp"
#include "machine/within.hpp"
#include "policy/values/words.hpp"
#include "terminal/messages.hpp"
#include "terminal/terminal.hpp"

CURB_VERSION_NOTE(CURB_VERSION);
CURB_COMMAND_NOTE();

// In the order of the help. A group stands before its commands.
#define CURB_COMMANDS(X)  \
    X(kRun)               \
    X(kPs)                \
    X(kTop)               \
    X(kRelease)           \
    X(kCap)               \
    X(kPolicy)            \
    X(kPolicyInit)        \
    X(kPolicyCheck)       \
    X(kPolicyShow)        \
    X(kPolicyExplain)     \
    X(kPolicySchema)      \
    X(kKernelspec)        \
    X(kKernelspecInstall) \
    X(kCdi)               \
    X(kCdiGenerate)       \
    X(kNap)               \
    X(kSuspend)           \
    X(kResume)            \
    X(kReport)            \
    X(kReplay)            \
    X(kMetrics)           \
    X(kDoctor)

namespace curb::cli {

#define CURB_DECLARED(command) extern const Command command;
CURB_COMMANDS(CURB_DECLARED)
#undef CURB_DECLARED

namespace {

constexpr Command kCurb{
    .name = "curb",
    .line = "Keeps a process's GPU memory within a policy, without changing the process.",
    .help = R"(
Examples:
  curb run -c 8GiB -- python train.py         at most 8 GiB of each GPU (--cap)
  curb run --policy job.json -- ./train.sh    a policy that can be edited while it runs
  curb run --sim --cap 1GiB -- ./a.out        try it without a GPU
  curb policy check job.json                  every error of a policy file, with its place
  curb policy show                            the policy of this environment, and where each value comes from
  curb policy explain job.json -- ./train.sh  which rule of the policy a command would get, and why
  curb ps                                     who holds what of the GPUs
  curb release PID                            make a program give back memory that it caches
  kill -USR1 PID                              the same, without an answer
  curb cap PID 6GiB                           changes the cap of a running program; --reset: that of its policy
  curb doctor PID                             is curb in effect there, and if not, why
  curb nap PID                                a whole process out to host memory, until its next CUDA call
  curb suspend PID; curb resume PID           the same, until curb resume
  curb kernelspec install --cap 6GiB          a Jupyter kernel with this cap
  curb cdi generate --cap 8GiB                a container device with this cap
  curb report TRACE -o run.html               a recorded run as a picture
  curb replay TRACE --policy job.json         what another policy would have done to it
  curb metrics                                figures for Prometheus
  curb doctor                                 what is wrong with this machine

Without `curb run`: LD_PRELOAD=/path/to/libcurb.so CURB_POLICY=job.json COMMAND)",
};

// Opens /dev/null for each closed standard descriptor, so that reading or writing it fails. Else a socket or a file of
// the driver would get the number, and curb's output. The program of `curb run` finds the descriptors closed.
void reserve_standard_descriptors() {
    for (const int standard : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
        if (::fcntl(standard, F_GETFD) >= 0) continue;
        // open() takes the lowest free number, which is this one.
        static_cast<void>(::open("/dev/null", (standard == STDIN_FILENO ? O_WRONLY : O_RDONLY) | O_CLOEXEC));
    }
}

int run_command(const std::vector<std::string> &words) {
#define CURB_ADDRESS(command) &command,
    return dispatch({CURB_COMMANDS(CURB_ADDRESS)}, kCurb, words);
#undef CURB_ADDRESS
}

}  // namespace
}  // namespace curb::cli

int main(int argc, char **argv) {
    int status = curb::cli::kFailure;
    try {
        curb::cli::reserve_standard_descriptors();
        status = curb::cli::run_command({argv + std::min(argc, 1), argv + argc});
        curb::cli::print("");  // flushes stdout: an answer that cannot be written is a failure
    } catch (const std::filesystem::filesystem_error &error) {  // as for a relative path in a folder that is gone
        curb::cli::say::error(curb::policy::quote(error.path1().native()) +
                              " cannot be found from here: " + error.code().message() +
                              "; write its absolute path, or change to a folder that is there");
        status = curb::cli::kFailure;
    } catch (const std::exception &error) {
        curb::cli::say::error(error.what());
        status = curb::cli::kFailure;
    }
    if (curb::cli::calls_under_way() != 0) std::_Exit(status);
    return status;
}
