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

// Of suspend and resume.
inline constexpr int kRefused = 1;
inline constexpr int kHalfDone = 2;
inline constexpr int kInterrupted = 130;

struct RunOptions {
    std::optional<std::string> cap;     // --cap
    std::optional<std::string> policy;  // --policy
    bool strict = false;                // --strict: a program that cannot be put under curb is not started
    bool sim = false;
    bool dry_run = false;
    std::vector<std::string> command;
};
// Becomes the command, so it returns only when it could not (or with dry_run).
int run(const RunOptions &options);

// Files are named as in a shell; "-": standard input. Those of show and explain may be empty: the policy that this
// environment names.
struct CheckOptions {
    std::vector<std::string> files;
    bool json = false;
};
// 0: all are valid, 1: some are not, 2: some cannot be read.
int policy_check(const CheckOptions &options);

struct ShowOptions {
    std::string file;
    bool json = false;
};
// 0, or as policy_check.
int policy_show(const ShowOptions &options);

struct ExplainOptions {
    std::string file;
    bool json = false;
    std::vector<std::string> command;
};
// 0, or as policy_check.
int policy_explain(const ExplainOptions &options);

// Prints the schema of policy files.
int policy_schema();

struct PsOptions {
    std::vector<int> pids;  // in detail; none: everybody's figures
    bool json = false;
    std::optional<std::string> watch;  // --watch, seconds
};
// Who holds what. 0: shown, 1: some of the processes that were asked for cannot be, or do not answer.
int ps(const PsOptions &options);

struct ReleaseOptions {
    std::vector<int> pids;
    bool all = false;
    std::optional<std::string> bytes;  // --bytes
    std::vector<std::string> steps;    // --step, in this order
    bool json = false;
};
// Asks each process to give memory back, all at the same time, and waits for what came of it. 0: all have answered, 1:
// some could not be asked.
int release(const ReleaseOptions &options);

struct CapOptions {
    int pid = 0;
    std::optional<std::string> size;
    bool reset = false;     // --reset: the policy's cap again
    std::string gpu = "*";  // --gpu
    bool json = false;
};
// Changes the cap of a running process. 0: it is in force, 1: the process could not be asked.
int cap(const CapOptions &options);

struct SuspendOptions {
    int pid = 0;
    std::string timeout = "10s";  // for the driver to lock the process
    bool force = false;
    bool json = false;
};
struct ResumeOptions {
    int pid = 0;
    std::optional<std::string> wait;   // --wait, for room
    std::optional<std::string> bytes;  // --bytes, where no record is left
    bool json = false;
};
// 0: done. 1: not done, and the process is as it was. kHalfDone: it is in a state that stderr tells of. 130: not done
// because of Ctrl-C, and the process is as it was.
int suspend(const SuspendOptions &options);
int resume(const ResumeOptions &options);

struct ReportOptions {
    std::string trace;                  // "-": standard input
    std::optional<std::string> output;  // -o: .html or .svg; none: lines on standard output
    bool json = false;
};
// 0; 1: the trace cannot be read.
int report(const ReportOptions &options);

struct ReplayOptions {
    std::string trace;
    std::optional<std::string> policy;  // --policy; "-": standard input
    std::optional<std::string> cap;     // --cap
    bool json = false;
};
// 0, whatever the policy would have refused; 1: the trace or the policy cannot be read or used.
int replay(const ReplayOptions &options);

struct MetricsOptions {
    std::optional<std::string> textfile;  // --textfile
};
// 0: written, 1: it could not be.
int metrics(const MetricsOptions &options);

struct DoctorOptions {
    int pid = 0;  // 0: the machine
    bool json = false;
};
// 0: nothing is wrong, 1: something is.
int doctor(const DoctorOptions &options);

// One line on stderr, after "curb: ".
void complain(std::string_view message);

}  // namespace curb::cli
