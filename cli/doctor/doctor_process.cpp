#include <algorithm>
#include <utility>

#include "doctor/doctor.hpp"
#include "policy/values/words.hpp"
#include "ps/ps_text.hpp"
#include "terminal/format.hpp"

namespace curb::cli {
namespace {

constexpr const char *kRun = "start it by: curb run -- COMMAND";

std::string machine_of(const std::optional<Elf> &file) { return file ? architecture_of(*file) : ""; }
bool differ(const std::optional<Elf> &a, const std::optional<Elf> &b) { return a && b && !same_architecture(*a, *b); }

bool shares_host_memory(const control::Status &status) {
    return std::any_of(status.gpus.begin(), status.gpus.end(), [](const auto &gpu) { return gpu.shares_host_memory; });
}

class Examination {
  public:
    explicit Examination(const ProcessCondition &facts) : facts_(facts), pid_(std::to_string(facts.pid)) {}
    Findings findings() && {
        if (is_no_process()) return std::move(out_);
        const bool naps = is_napping();
        of("nap").ok(naps, facts_.name + " naps: its memory is in host memory until its next call of CUDA");
        if (facts_.status && facts_.status->nap) {
            const control::NapStatus &nap = *facts_.status->nap;
            const bool never = shares_host_memory(*facts_.status);
            of("nap").note(never, facts_.name + " has no naps: " + nap.refused) ||
                of("nap").note(!nap.refused.empty(),
                               facts_.name + " could not leave its GPUs when it was idle: " + nap.refused,
                               "curb tries again by itself, at most an hour later");
            of("nap").problem(nap.illegal_address,
                              facts_.name +
                                  " has used an address on the GPU at which there is no memory "
                                  "(CUDA_ERROR_ILLEGAL_ADDRESS), which memory of cuMemAlloc may hide",
                              "if it does so only with naps: \"suspend\": { \"light\": false } in its policy");
            of("nap").note(!nap.not_light.empty(), facts_.name + " naps at the driver's rate: " + nap.not_light);
        }
        of("suspended")
            .note(facts_.suspended && !naps,
                  facts_.name + " is suspended: its memory is in host memory, and its calls of CUDA wait",
                  "curb resume " + pid_);
        if (facts_.status)
            in_effect(*facts_.status);
        else if (!facts_.readable)
            closed();
        else if (!facts_.curb.empty())
            silent();
        else
            absent();
        return std::move(out_);
    }

  private:
    Check of(const char *check) { return {check, out_}; }
    // Adds the problem that the process is not under curb, if `when` is true. Returns `when`.
    bool none(bool when, const std::string &why, std::string remedy) {
        return of("preload").problem(when, facts_.name + " is not under curb: " + why, std::move(remedy));
    }
    [[nodiscard]] bool is_napping() const {
        return facts_.status && facts_.status->nap && facts_.status->nap->out && !facts_.status->nap->stays_out;
    }
    [[nodiscard]] bool is_listed() const {
        return facts_.listed &&
               std::find(facts_.listed->begin(), facts_.listed->end(), facts_.pid) != facts_.listed->end();
    }

    bool is_no_process() {
        const Check check = of("process");
        return check.problem(!facts_.there, "there is no process " + pid_, "curb ps lists those that use a GPU") ||
               check.problem(facts_.thread_of != 0, fmt::format("{} is a thread of process {}", pid_, facts_.thread_of),
                             fmt::format("ask for that one: curb doctor {}", facts_.thread_of)) ||
               check.problem(facts_.kernel_thread,
                             facts_.name + " is a thread of the kernel, which no library can be loaded into",
                             "ask for a program") ||
               check.problem(facts_.ended, facts_.name + " has ended, and its parent has not taken notice of that", "");
    }

    void closed() {
        const Check check = of("process");
        const std::string as_root = "sudo curb doctor " + pid_;
        check.problem(
            facts_.owner != facts_.user && facts_.user != 0,
            facts_.name + " belongs to " + facts_.owner_name + ", so it cannot be looked into",
            "ask as " + (facts_.owner_name == "root" ? "" : facts_.owner_name + ", or as ") + "root: " + as_root) ||
            none(facts_.owner != facts_.acts_as,
                 "its program has another user's rights (setuid), so the loader ignores LD_PRELOAD",
                 "start the program that it starts by curb run, or name libcurb.so in /etc/ld.so.preload") ||
            check.problem(
                facts_.user == 0,
                facts_.name + " cannot be looked into by root either, as in containers without CAP_SYS_PTRACE",
                "ask outside the container, or as the user of that process") ||
            check.problem(true,
                          facts_.name + " does not let its own user look into it: it has privileges, or asked for that",
                          "ask as root: " + as_root);
    }

    // The process has not mapped libcurb.so. Reports the first cause that applies: each alone is enough.
    void absent() {
        const std::string program = machine_of(facts_.program), library = machine_of(facts_.library);
        const bool has_others = facts_.preload && !facts_.preload->empty();
        const bool found =
            none(differ(facts_.program, facts_.library),
                 "its program is for " + program + ", and libcurb.so for " + library,
                 facts_.program && facts_.program->bits == 32
                     ? "CUDA has no 32-bit programs any more; build it for " + library
                     : "install curb for " + program) ||
            none(facts_.program && facts_.program->is_static(),
                 "its program is statically linked, so nothing can be loaded before it", "link it dynamically") ||
            none(facts_.program && facts_.program->uses_musl(),
                 "its program uses musl as its libc, and libcurb.so needs glibc",
                 "run it in an image with glibc, on which CUDA's libraries depend too") ||
            none(facts_.secure,
                 "its program has rights of its own (setuid, setgid or capabilities), so the loader ignores LD_PRELOAD",
                 "start it without them, or name libcurb.so in /etc/ld.so.preload") ||
            none(facts_.preloaded.empty(),
                 fmt::format("LD_PRELOAD {} when it was started{}",
                             has_others ? "named other libraries alone" : "was not set",
                             facts_.has_settings.empty() ? "" : ", though " + facts_.has_settings + " was"),
                 "put curb run right before the program, behind what clears the environment (sudo, ssh, env -i, "
                 "docker): "
                 "sudo curb run -- COMMAND");
        if (found || std::any_of(facts_.preloaded.begin(), facts_.preloaded.end(),
                                 [&](const Preloaded &one) { return unusable(one); }))
            return;
        none(true,
             fmt::format("{} names {}, but the loader did not take it", facts_.preloaded.front().by,
                         facts_.preloaded.front().path),
             std::string(facts_.preloaded.front().by == kPreloadFile ? "restart it if that is newer than it; else "
                                                                     : "") +
                 "see what the program wrote to stderr at its start: the loader says why");
    }

    // Reports why the loader of the process cannot take the library.
    bool unusable(const Preloaded &one) {
        const std::string named = fmt::format("{} names {}, which ", one.by, one.path);
        const std::string program = machine_of(facts_.program);
        return none(!one.there, named + "is not there for this process",
                    facts_.inner_pid != 0 ? "put curb into the container, under that path"
                                          : std::string("correct the path, or ") + kRun) ||
               none(differ(facts_.program, one.elf),
                    fmt::format("{}is for {} and the program for {}", named, machine_of(one.elf), program),
                    "install curb for " + program) ||
               none(facts_.glibc != 0 && one.glibc > facts_.glibc,
                    fmt::format("{}needs glibc 2.{}, and the program runs with 2.{}", named, one.glibc, facts_.glibc),
                    "run it in an image with a newer glibc (Debian 12, Ubuntu 22.04), or take the library of the "
                    "wheel for glibc 2.28");
    }

    void mapped_library() {
        if (facts_.curb.empty()) return;
        const Check check = of("library");
        const Mapped &library = facts_.curb.front();
        const auto other = std::find_if(facts_.curb.rbegin(), facts_.curb.rend(),
                                        [&](const Mapped &one) { return one.path != library.path; });
        const bool is_alone = other == facts_.curb.rend();
        check.problem(!is_alone,
                      fmt::format("two libraries of curb are in {}: {} and {}", facts_.name, library.path,
                                  is_alone ? "" : other->path),
                      "name one of them in LD_PRELOAD") ||
            check.note(
                library.deleted,
                library.path + " was replaced since " + facts_.name + " was started, and still runs there as it was",
                "restart the program to use the new one") ||
            check.ok(true, library.path);
    }

    // The process has mapped libcurb.so, but does not answer.
    void silent() {
        mapped_library();
        const Check control = of("control"), cuda = of("cuda");
        if (facts_.has_socket) {
            control.note(facts_.stopped, facts_.name + " is stopped, so it does not say what it holds",
                         "kill -CONT " + pid_) ||
                control.problem(true, facts_.silence, "restart it, if that lasts");
            return;
        }
        if (control.problem(!facts_.no_socket.empty(),
                            facts_.name + " cannot make a control socket, so it cannot be asked: " + facts_.no_socket,
                            "mount a /tmp that it can write to (docker run --tmpfs /tmp), or give it the folder "
                            "for sockets: -v /run/curb:/run/curb"))
            return;
        const bool found =
            of("fork").note(
                facts_.forked_from != 0 && !is_listed(),
                fmt::format("{} was forked by process {}: if that had used CUDA by then, CUDA does not work in "
                            "it, and its calls bypass curb",
                            facts_.name, facts_.forked_from),
                "start workers that use CUDA by spawn, not by fork") ||
            control.note(facts_.inner_pid != 0, facts_.name + " runs in a container of its own, where it can be asked",
                         fmt::format("in its container, ask for process {}", facts_.inner_pid));
        if (found) return;
        if (cuda.ok(facts_.driver.empty(), "it has not used CUDA yet; curb reads the policy when it does"))
            return sees_no_gpu("libcuda is not");
        if (cuda.problem(is_listed(),
                         facts_.name + " holds GPU memory that curb does not answer for: either its calls do not come "
                                       "through curb (dlmopen, RTLD_DEEPBIND), or its control socket is gone",
                         "see its log: the policy's log.level \"info\" says why there is no socket"))
            return;
        cuda.note(
            true,
            "it has loaded the driver (" + facts_.driver.front().path + ") and has not initialised it through curb yet",
            "if it computes on a GPU all the same, its calls do not come through curb (dlmopen, RTLD_DEEPBIND)");
        sees_no_gpu("the driver is not initialised");
    }

    // Adds a note if the process has loaded TensorFlow: it makes a context at its first operation, and without a GPU it
    // computes on the CPU and reports no error.
    void sees_no_gpu(const std::string &why) {
        of("tensorflow")
            .note(!facts_.tensorflow.empty(),
                  "TensorFlow is loaded, and " + why +
                      ": it has not used a GPU yet, or it found none and computes on the CPU",
                  "tf.config.list_physical_devices('GPU') says which it sees; if none, TensorFlow's messages on stderr "
                  "say "
                  "why (a library of CUDA's that is missing), and CUDA_VISIBLE_DEVICES must name one");
    }

    // Explains TensorFlow's own limit: an out-of-memory error within it never reaches the driver. doctor cannot see the
    // error, but it sees that curb refused nothing.
    void own_limit(const control::Status &status) {
        constexpr policy::Bytes kLeft = 512 * policy::MiB;  // TensorFlow's reserve and curb's leave up to 385 MiB
        const auto &keeps = status.returns_nothing;
        if (std::find(keeps.begin(), keeps.end(), "TensorFlow") == keeps.end()) return;
        for (const control::GpuStatus &gpu : status.gpus) {
            if (gpu.contexts == 0 || !gpu.cap || gpu.held + kLeft > *gpu.cap || control::refused(gpu) != 0) continue;
            of("tensorflow")
                .ok(true,
                    fmt::format("cuda:{}: curb has refused nothing, and {} of the cap are left; if TensorFlow reports "
                                "out of memory, that is its own limit, which it sets once, at its start: "
                                "memory_limit, a fraction, or the free memory less TF_DEVICE_MIN_SYS_MEMORY_IN_MB",
                                gpu.ordinal, policy::format_human(*gpu.cap - gpu.held)));
        }
    }

    void policy(const control::Status &status) {
        const control::PolicyStatus &policy = status.policy;
        const Check check = of("policy");
        const std::string file =
            policy.file.empty() ? policy.ceiling.empty() ? "CURB_CAP" : policy.ceiling : policy.file;
        std::vector<std::string> parts;
        if (!policy.file.empty()) parts.push_back(policy.file);
        if (!policy.rule.empty()) parts.push_back(policy.rule);
        if (!policy.cap.empty()) parts.push_back("CURB_CAP " + policy.cap);
        if (!policy.flags.empty()) parts.push_back(policy.flags);
        if (!policy.ceiling.empty()) parts.push_back("ceiling " + policy.ceiling);
        const auto job =
            std::find_if(status.gpus.begin(), status.gpus.end(), [](const auto &gpu) { return gpu.job_cap; });
        const bool has_job = job != status.gpus.end();
        if (has_job && parts.empty()) parts.push_back("a job's cap of " + policy::format_human(*job->job_cap));
        check.problem(policy.unusable, "its policy cannot be used, so every GPU allocation is refused: " + policy.error,
                      "fix " + file + (policy.file.empty() ? "" : "; it is read at once")) ||
            check.problem(!policy.error.empty(), "the last edit of its policy is not in force: " + policy.error,
                          "fix " + file + "; until then the last good one is in force") ||
            check.problem(has_job && status.job.empty(),
                          "the ledger of its job cannot be used, so every request under the job's cap is refused",
                          "its log says why; end all programs of the job, then start them again") ||
            check.ok(!parts.empty(), policy::joined(parts, ", ")) ||
            check.note(true, "it has no policy, so curb observes it and limits nothing",
                       "curb cap " + pid_ + " SIZE sets a cap; curb run --policy FILE gives it a policy");
    }

    void held(const control::GpuStatus &gpu) {
        const Check check = of("held");
        const std::string cap = gpu.cap ? " of " + policy::format_human(*gpu.cap) : ", no cap";
        const std::string job = gpu.job_cap
                                    ? fmt::format("; its job holds {} of {}", policy::format_human(gpu.job_held),
                                                  policy::format_human(*gpu.job_cap))
                                    : "";
        const std::string text = fmt::format("cuda:{}: {}{}{}{}", gpu.ordinal, policy::format_human(gpu.held), cap,
                                             gpu.cap && gpu.ceiling ? " (the machine's ceiling)" : "", job);
        check.ok(facts_.suspended,
                 text + "; in host memory until " + (is_napping() ? "its next call of CUDA" : "it is resumed")) ||
            check.note(
                gpu.cap && gpu.held > *gpu.cap,
                text + ": more than the cap, as after it was lowered, so no request is served",
                "curb release " + pid_ + " gives back what is cached; what the program uses is not taken from it") ||
            check.ok(true, text);
    }

    void gpus(const control::Status &status) {
        bool is_used = false;
        for (const control::GpuStatus &gpu : status.gpus) {
            if (gpu.contexts != 0 || gpu.held != 0) held(gpu);
            is_used = is_used || gpu.contexts > 0;
        }
        for (const control::GpuStatus &gpu : status.gpus)
            if (const auto *last = last_refusal(status, gpu))
                of("refused").note(true, fmt::format("cuda:{}: {}", gpu.ordinal, refusal_text(gpu, *last, facts_.now)),
                                   refusal_help(facts_.pid, gpu, *last));
        for (const control::Waiting &one : status.waits)
            of("waiting").note(
                has_waited_long(one, facts_.now),
                fmt::format("it waits on cuda:{} for {}", one.gpu, wait_text(one, facts_.pid, facts_.now)),
                remedy_for(one.why, facts_.pid));
        const bool shares = shares_host_memory(status);
        of("nvml").note(is_used && shares,
                        "its GPU shares the host's memory, of which NVML has no figures, so what the driver takes for "
                        "code is not measured") ||
            note_unlisted(of("nvml"), is_used && facts_.listed && !is_listed(), "it");
    }

    void in_effect(const control::Status &status) {
        mapped_library();
        of("control").ok(true, facts_.name + " is under curb and answers");
        of("version").note(status.version != facts_.version,
                           "its libcurb.so is of version " + status.version + ", and this command of " + facts_.version,
                           "restart the program, or use the command of that version");
        policy(status);
        gpus(status);
        of("signal").note(!status.signal_trouble.empty(), status.signal_trouble + ", so the signal asks for no release",
                          "ask by curb release " + pid_ + ", or name another signal in its policy (release.signal)");
        if (std::none_of(status.gpus.begin(), status.gpus.end(), [](const auto &gpu) { return gpu.contexts > 0; }))
            sees_no_gpu("it has no context on a GPU");
        own_limit(status);
        for (const control::Bypass &one : status.bypasses)
            of("passed").problem(true,
                                 one.library + ": " + one.how + ", so what it takes is seen only by NVML, if at all",
                                 "open that library without RTLD_DEEPBIND and dlmopen");
        const control::TraceStatus trace = status.trace.value_or(control::TraceStatus());
        const Check check = of("trace");
        check.problem(!trace.error.empty(), "its trace " + trace.file + " is not written any more: " + trace.error,
                      "make room, or correct /trace/file in its policy") ||
            check.note(trace.dropped != 0,
                       fmt::format("{} events are missing in its trace {}, which could not be written fast enough",
                                   trace.dropped, trace.file),
                       "put the trace on a faster disk");
    }

    const ProcessCondition &facts_;
    const std::string pid_;
    Findings out_;
};

}  // namespace

Findings examine(const ProcessCondition &facts) { return Examination(facts).findings(); }

}  // namespace curb::cli
