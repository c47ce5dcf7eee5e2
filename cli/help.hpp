// What --help says below the options of each command: exit status, what is not obvious, examples. Beside main.cpp, so
// that both can be read.
#pragma once

namespace curb::cli::help {

inline constexpr const char *kExamples = R"(
Examples:
  curb run --cap 8GiB -- python train.py      hold the program to 8 GiB of each GPU
  curb run --policy job.json -- ./train.sh    a policy that can be edited while it runs
  curb run --sim --cap 1GiB -- ./a.out        try it without a GPU
  curb policy check job.json                  every error of a policy file, with its place
  curb policy show                            the policy of this environment, and where each value comes from
  curb policy explain job.json -- ./train.sh  which rule of the policy a command would get, and why
  curb ps                                     who holds what of the GPUs
  curb release PID                            make a program give back memory that it caches
  kill -USR1 PID                              the same, without an answer
  curb cap PID 6GiB                           another cap for a program that runs; --reset: its policy's again
  curb doctor PID                             is curb in effect there, and if not, why
  curb suspend PID; curb resume PID           a whole process out to host memory, and back
  curb report TRACE -o run.html               a recorded run as a picture
  curb replay TRACE --policy job.json         what another policy would have done to it
  curb metrics                                figures for Prometheus
  curb doctor                                 what is wrong with this machine

Without `curb run`: LD_PRELOAD=/path/to/libcurb.so CURB_POLICY=job.json COMMAND)";

inline constexpr const char *kRun = R"(
The command replaces curb: same pid, signals and exit status. 125: curb itself failed (a policy that cannot be used,
a library that is not there), 126: the command cannot be executed, 127: there is no such command.

A program that is statically linked or has rights of its own (set-user-ID) runs without curb, and so does every program
if libcurb.so lies on a noexec mount. curb run warns, and then starts it; with --strict it does not, and returns 125.

Without --policy: CURB_POLICY, else $XDG_CONFIG_HOME/curb/policy.json if it is there. Without --cap: CURB_CAP;
with both the lower holds, also within another curb run. A list holds by its lowest: --cap 25%,6GiB.
/etc/curb/policy.json is a ceiling that no policy can lift. See curb policy show --help.

--sim serves programs that call libcuda themselves; the CUDA runtime (PyTorch, what nvcc links) needs a real driver.

Examples:
  curb run --cap 8GiB -- python train.py      no more than 8 GiB of each GPU, the context included
  curb run --policy job.json -- ./train.sh    job.json may be edited while it runs
  curb run --dry-run --cap 75% -- ./train.sh  what would be set and run
  curb run --sim --cap 1GiB -- ./a.out        on a simulated GPU)";

inline constexpr const char *kPs = R"(
GPU by GPU, with everybody on it. HELD is what a process under curb holds by its
own books, NVML the driver's figure for it; a process that is not under curb has
that one alone. CAP none: it is watched, but not capped. A narrow terminal loses
columns, never processes. What is out of the ordinary is said underneath:
refused requests, a process that is stopped or does not answer, one above its
cap. It takes 0.3 s at the most, whatever the processes do.

With PID: its policy, what it holds by kind, pools, its last refusals and
releases, calls that pass by curb. Processes under curb are those of this user
(of all users, for root).

Exit status 0: shown, or ended by Ctrl-C; 1: a PID is none, is not under curb,
is another user's, or does not answer.

Examples:
  curb ps
  curb ps 4711                          all that is known of one process
  curb ps --watch 2                     again every 2 seconds
  curb ps --json | jq '.gpus[].free'    sizes in bytes)";

inline constexpr const char *kRelease = R"(
What a process and its frameworks cache is given back to the device; what they use stays. It takes as long as the
program keeps Python's lock; with --all no process is waited for longer than 30 s. Ctrl-C ends the waiting, not the
release. Processes are those of this user (of all users, for root) that have used CUDA under curb.

Exit status 0: all have answered, also if there was nothing to give back; 1: some could not be asked, or did not answer.

Examples:
  curb release 4711
  curb release --all --json                   one answer a process
  curb release 4711 --bytes 2GiB              steps are taken until so much is back
  curb release 4711 --step pools              that step alone)";

inline constexpr const char *kCap = R"(
In force at once, higher or lower than the policy's, until --reset or the end of the process; edits of the policy do not
change it. The machine's ceiling, /etc/curb/policy.json, holds all the same. If more is held than the new cap allows,
cached memory is released and no request is served until it is under; what the program uses is not taken from it.

Caps for several keys add up; for each device that of the most specific key holds, as in policies. --reset takes away
whatever was set for the devices that --gpu names; without --gpu, for all.

Exit status 0: in force, 1: not, because the machine's ceiling allows no more, or the process could not be asked or
cannot do it, 125: wrong arguments.

Examples:
  curb cap 4711 6GiB
  curb cap 4711 50% --gpu cuda:1              half of that device
  curb cap 4711 --reset
  curb cap 4711 6GiB --json | jq .gpus[].held)";

inline constexpr const char *kPolicy = R"(
docs/POLICY.md and curb-policy(5) describe every field; curb policy schema prints the same for editors.

Examples:
  curb policy check job.json                  every error of a policy file, with its place
  curb policy show                            the policy of this environment, and where each value comes from
  curb policy explain job.json -- ./train.sh  which rule of the policy a command would get, and why)";

inline constexpr const char *kCheck = R"(
Warnings are of what is valid and hardly meant, such as a pattern that looks like a regular expression; they do not count.

Exit status 0: all are valid, 1: some are not, 2: some cannot be read.

Examples:
  curb policy check job.json
  curb policy check --json *.json             one answer a line
  generate-policy | curb policy check -)";

inline constexpr const char *kShow = R"(
Each field has its value and where it comes from: "default", a place in a file, CURB_CAP. What the machine's ceiling
(/etc/curb/policy.json) says of the same field stands beside it; on a device the lower of two caps holds.
Without FILE: CURB_POLICY, else $XDG_CONFIG_HOME/curb/policy.json. Rules are listed, but none is applied: which one a
command gets, curb policy explain says. Exit status as of curb policy check.

Examples:
  curb policy show job.json
  CURB_CAP=8GiB curb policy show              what a program would get that is started here)";

inline constexpr const char *kExplain = R"(
The command is not run. It is taken as the kernel would take it: found in PATH, symbolic links followed, of a script the
interpreter. Every rule is held against it, and what comes of the policy is shown as by curb policy show, with the
environment variables that would be set. Without FILE: as curb policy show. Exit status as of curb policy check.

Examples:
  curb policy explain job.json -- python train_bert.py --lr 1e-4
  SLURM_JOB_NAME=bert curb policy explain --json job.json -- ./train.sh)";

inline constexpr const char *kSchema = R"(
Editors that know JSON Schema complete and check policies by it while they are typed.

Examples:
  curb policy schema > policy.schema.json     for "$schema": "./policy.schema.json" in a policy beside it)";

inline constexpr const char *kSuspend = R"(
The process keeps its pid, files and host memory; its CUDA calls wait until curb resume. All that it holds of its GPUs goes
to host memory, but for a few MiB. Takes a driver of 570 or newer and the process's user, or root. Refused: MIG, MPS,
managed memory, one process of several that work together, too little host memory. --force goes on where it is only
guessed that it might go wrong: managed memory of a process that is not under curb, a launcher's variables without NCCL,
XLA (JAX, TensorFlow), whose threads were seen to crash in the middle of training (2 of 14).

Exit status 0: suspended, 1: not, and it runs as before, 2: in a state that standard error tells of, 125: wrong arguments,
130: not, because of Ctrl-C. Once memory is on its way out, Ctrl-C does not stop it.

Examples:
  curb suspend 4711
  curb suspend --json 4711 | jq .bytes)";

inline constexpr const char *kResume = R"(
Refused while a GPU has less room than the process held there: the driver would wedge it for good. Others who take that
room at the same moment cannot be kept out. A process that was left locked by a suspend that was cut short is unlocked.

Exit status 0: it runs, 1: not, and it is as before, 2: in a state that standard error tells of, 125: wrong arguments,
130: not, because of Ctrl-C.

Examples:
  curb resume 4711
  curb resume --wait 10m 4711                 as soon as there is room
  curb resume --bytes 8GiB 4711               when the record of what it held is lost)";

inline constexpr const char *kReport = R"(
The page has all in it and loads nothing. Of long runs the picture keeps every peak, refusal and release. A trace may be cut
off, or lack events that could not be written fast enough: what is there is shown, and what is missing is said.

Exit status 0; 1: the trace cannot be read; 125: the file cannot be written.

Examples:
  curb report curb-4711.trace.json                 lines on standard output
  curb report curb-4711.trace.json -o run.html     a page for browsers
  curb report curb-4711.trace.json -o run.svg      a picture for papers
  curb report --json curb-4711.trace.json | jq '.gpus[0].peak.bytes')";

inline constexpr const char *kReplay = R"(
Each recorded request is held against the policy as libcurb.so would: what it would have refused, held for room or released
first, how far it would have grown; and the smallest cap that, as the only limit, would have served the run. Memory that would have been refused
is then not there, and its free is passed over; the program is taken to go on as it did. What others hold of the GPU, what
frameworks cache, and curb's own cache are not known from a trace. Rules match by the recorded command.

Exit status 0, whatever would have been refused; 1: trace or policy cannot be used; 2: the policy cannot be read.

Examples:
  curb replay curb-4711.trace.json --policy job.json
  curb replay curb-4711.trace.json --cap 6GiB
  curb replay --cap 6GiB --json 4711.trace.json | jq '.gpus[0].smallest_cap')";

inline constexpr const char *kMetrics = R"(
Prints, in Prometheus's text format, what capped processes hold and may hold of each GPU, what was refused and released,
and NVML's own figures beside these. What is not known is absent, not 0. docs/METRICS.md has every series, and how to scrape them.

--textfile is for node_exporter's textfile collector: the text is written beside PATH and renamed over it, so that no
half file is ever read. A file that is there stays as it was when anything fails.

Processes are those that can be asked: of this user, for root those of all; of the others NVML's figures are shown. Exit
status 0: written, 1: it could not be written.

Examples:
  curb metrics                                on standard output
  curb metrics --textfile /var/lib/prometheus/node-exporter/curb.prom)";

inline constexpr const char *kDoctor = R"(
Without PID: the driver, NVML, libcurb.so, the folder for control sockets, the policy of this environment, and who uses
the GPUs. With PID: whether curb is in effect in that process, and if not, why. Loads the driver, which takes seconds
where no GPU is kept awake, and takes no GPU memory.

Exit status 0: nothing is wrong, 1: problems were found; notes do not count.

Examples:
  curb doctor
  curb doctor 4711                            is curb in effect there?
  curb doctor --json | jq '.findings[] | select(.result == "problem")')";

}  // namespace curb::cli::help
