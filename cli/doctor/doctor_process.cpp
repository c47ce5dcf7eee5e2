#include <algorithm>
#include <utility>

#include "doctor.hpp"
#include "policy/words.hpp"
#include "ps_text.hpp"

namespace curb::cli {
namespace {

constexpr const char *kRun = "start it by: curb run -- COMMAND";

class Examination {
  public:
    explicit Examination(const ProcessCondition &facts) : facts_(facts) {}
    Findings findings() && {
        if (!facts_.there || facts_.ended || facts_.kernel_thread || facts_.thread_of != 0) {
            no_process();
            return std::move(out_);
        }
        if (facts_.suspended)
            note("suspended", facts_.name + " is suspended: its memory is in host memory, and its calls of CUDA wait",
                 "curb resume " + std::to_string(facts_.pid));
        if (facts_.status)
            in_effect();
        else if (!facts_.readable)
            closed();
        else if (!facts_.curb.empty())
            silent();
        else
            absent();
        return std::move(out_);
    }

  private:
    void no_process();
    void closed();
    void absent();
    void silent();
    void in_effect();
    void mapped_library();
    void policy(const control::PolicyStatus &policy);
    void gpus(const control::Status &status);
    [[nodiscard]] std::string remedy_for(policy::Obstacle why) const;
    void sees_no_gpu(const std::string &why);
    void own_limit(const control::Status &status);

    void ok(const char *check, std::string text) { out_.push_back({check, Verdict::ok, std::move(text), {}}); }
    void note(const char *check, std::string text, std::string remedy = {}) {
        out_.push_back({check, Verdict::note, std::move(text), std::move(remedy)});
    }
    void problem(const char *check, std::string text, std::string remedy) {
        out_.push_back({check, Verdict::problem, std::move(text), std::move(remedy)});
    }
    // "curb is not in effect: WHY"
    void none(const std::string &why, std::string remedy) {
        problem("preload", facts_.name + " is not under curb: " + why, std::move(remedy));
    }
    [[nodiscard]] bool is_listed() const {
        return facts_.listed &&
               std::find(facts_.listed->begin(), facts_.listed->end(), facts_.pid) != facts_.listed->end();
    }

    const ProcessCondition &facts_;
    Findings out_;
};

void Examination::no_process() {
    constexpr const char *kCheck = "process";
    const std::string pid = std::to_string(facts_.pid);
    if (!facts_.there)
        problem(kCheck, "there is no process " + pid, "curb ps lists those that use a GPU");
    else if (facts_.thread_of != 0)
        problem(kCheck, pid + " is a thread of process " + std::to_string(facts_.thread_of),
                "ask for that one: curb doctor " + std::to_string(facts_.thread_of));
    else if (facts_.kernel_thread)
        problem(kCheck, facts_.name + " is a thread of the kernel, which no library can be loaded into",
                "ask for a program");
    else
        problem(kCheck, facts_.name + " has ended, and its parent has not taken notice of that", "");
}

void Examination::closed() {
    constexpr const char *kCheck = "process";
    if (facts_.owner != facts_.user && facts_.user != 0)
        problem(kCheck, facts_.name + " belongs to " + facts_.owner_name + ", so it cannot be looked into",
                "ask as " + (facts_.owner_name == "root" ? "" : facts_.owner_name + ", or as ") +
                    "root: sudo curb doctor " + std::to_string(facts_.pid));
    else if (facts_.owner != facts_.acts_as)
        none("its program has another user's rights (setuid), so the loader passes LD_PRELOAD over",
             "start the program that it starts by curb run, or name libcurb.so in /etc/ld.so.preload");
    else if (facts_.user == 0)
        problem(kCheck, facts_.name + " cannot be looked into by root either, as in containers without CAP_SYS_PTRACE",
                "ask outside the container, or as the user of that process");
    else
        problem(kCheck, facts_.name + " does not let its own user look into it: it has privileges, or asked for that",
                "ask as root: sudo curb doctor " + std::to_string(facts_.pid));
}

// libcurb.so is not in its memory. Reports the first cause that holds: each alone is enough.
void Examination::absent() {
    if (facts_.program && facts_.library &&
        (facts_.program->machine != facts_.library->machine || facts_.program->bits != facts_.library->bits))
        return none("its program is for " + architecture_of(*facts_.program) + ", and libcurb.so for " +
                        architecture_of(*facts_.library),
                    facts_.program->bits == 32
                        ? "CUDA has no 32-bit programs any more; build it for " + architecture_of(*facts_.library)
                        : "install curb for " + architecture_of(*facts_.program));
    if (facts_.program && facts_.program->interpreter.empty())
        return none("its program is statically linked, so nothing can be loaded before it", "link it dynamically");
    if (facts_.program && facts_.program->interpreter.find("/ld-musl-") != std::string::npos)
        return none("its program uses musl as its libc, and libcurb.so needs glibc",
                    "run it in an image with glibc, on which CUDA's libraries depend too");
    if (facts_.secure)
        return none(
            "its program has rights of its own (setuid, setgid or capabilities), so the loader passes LD_PRELOAD over",
            "start it without them, or name libcurb.so in /etc/ld.so.preload");
    if (facts_.preloaded.empty()) {
        const std::string beside = facts_.preload && !facts_.preload->empty() ? "LD_PRELOAD named other libraries alone"
                                                                              : "LD_PRELOAD was not set";
        return none(
            beside + " when it was started" + (facts_.has_settings ? ", though CURB_POLICY or CURB_CAP was" : ""),
            "put curb run right before the program, behind what clears the environment (sudo, ssh, env -i, docker): "
            "sudo curb run -- COMMAND");
    }
    for (const Preloaded &one : facts_.preloaded) {
        if (!one.there)
            return none("LD_PRELOAD names " + one.path + ", which is not there for this process",
                        facts_.inner_pid != 0 ? "put curb into the container, under that path"
                                              : "correct the path, or " + std::string(kRun));
        if (facts_.program && one.elf &&
            (one.elf->machine != facts_.program->machine || one.elf->bits != facts_.program->bits))
            return none("LD_PRELOAD names " + one.path + ", which is for " + architecture_of(*one.elf) +
                            " and the program for " + architecture_of(*facts_.program),
                        "install curb for " + architecture_of(*facts_.program));
    }
    none("LD_PRELOAD names " + facts_.preloaded.front().path + ", but the loader did not take it",
         "see what the program wrote to stderr at its start: the loader says why");
}

void Examination::mapped_library() {
    constexpr const char *kCheck = "library";
    const Mapped *other = nullptr;
    for (const Mapped &one : facts_.curb)
        if (one.path != facts_.curb.front().path) other = &one;
    if (facts_.curb.empty()) return;
    const Mapped &library = facts_.curb.front();
    if (other != nullptr)
        problem(kCheck, "two libraries of curb are in " + facts_.name + ": " + library.path + " and " + other->path,
                "name one of them in LD_PRELOAD");
    else if (library.deleted)
        note(kCheck,
             library.path + " was replaced since " + facts_.name + " was started, and still runs there as it was",
             "restart the program to use the new one");
    else
        ok(kCheck, library.path);
}

// libcurb.so is in its memory, and its socket does not answer.
void Examination::silent() {
    mapped_library();
    constexpr const char *kCheck = "control";
    const std::string container =
        facts_.inner_pid != 0 ? "in its container, ask for process " + std::to_string(facts_.inner_pid) : "";
    if (facts_.has_socket)
        return facts_.stopped ? note(kCheck, facts_.name + " is stopped, so it does not say what it holds",
                                     "kill -CONT " + std::to_string(facts_.pid))
                              : problem(kCheck, facts_.silence, "restart it, if that lasts");
    if (facts_.forked_from != 0 && !is_listed())
        return note("fork",
                    facts_.name + " was forked by process " + std::to_string(facts_.forked_from) +
                        ": if that had used CUDA by then, CUDA does not work in it, and curb passes its calls",
                    "start workers that use CUDA by spawn, not by fork");
    if (!container.empty())
        return note(kCheck, facts_.name + " runs in a container of its own, where it can be asked", container);
    if (facts_.driver.empty()) {
        ok("cuda", "it has not used CUDA yet; curb reads the policy when it does");
        return sees_no_gpu("libcuda is not");
    }
    if (is_listed())
        return problem("cuda",
                       facts_.name +
                           " holds GPU memory that curb does not answer for: either its calls do not come through "
                           "curb (dlmopen, RTLD_DEEPBIND), or its control socket is gone",
                       "see its log: the policy's log.level \"info\" says why there is no socket");
    note("cuda",
         "it has loaded the driver (" + facts_.driver.front().path + ") and has not initialised it through curb yet",
         "if it computes on a GPU all the same, its calls do not come through curb (dlmopen, RTLD_DEEPBIND)");
    sees_no_gpu("the driver is not initialised");
}

// TensorFlow is in the process and uses no GPU. It makes a context at its first operation; without a GPU it computes on
// the CPU and reports no error.
void Examination::sees_no_gpu(const std::string &why) {
    if (facts_.tensorflow.empty()) return;
    note("tensorflow",
         "TensorFlow is loaded, and " + why + ": it has not used a GPU yet, or it found none and computes on the CPU",
         "tf.config.list_physical_devices('GPU') says which it sees; if none, TensorFlow's messages on stderr say why "
         "(a library of CUDA's that is missing), and CUDA_VISIBLE_DEVICES must name one");
}

// An out-of-memory error within TensorFlow's own limit never reaches the driver. doctor cannot see it, but it can see
// that curb refused nothing.
void Examination::own_limit(const control::Status &status) {
    constexpr policy::Bytes kLeft = 512 * policy::MiB;  // TensorFlow's reserve and curb's leave up to 385 MiB
    const auto &keeps = status.returns_nothing;
    if (std::find(keeps.begin(), keeps.end(), "TensorFlow") == keeps.end()) return;
    for (const control::GpuStatus &gpu : status.gpus) {
        if (gpu.contexts == 0 || !gpu.cap || gpu.held + kLeft > *gpu.cap || control::refused(gpu) != 0) continue;
        ok("tensorflow", "cuda:" + std::to_string(gpu.ordinal) + ": curb has refused nothing, and " +
                             policy::format_human(*gpu.cap - gpu.held) +
                             " of the cap are left; if TensorFlow reports out of memory, that is its own limit, which "
                             "it sets once, at its start: memory_limit, a fraction, or the free memory less "
                             "TF_DEVICE_MIN_SYS_MEMORY_IN_MB");
    }
}

void Examination::policy(const control::PolicyStatus &policy) {
    constexpr const char *kCheck = "policy";
    const std::string file = policy.file.empty() ? policy.ceiling.empty() ? "CURB_CAP" : policy.ceiling : policy.file;
    if (policy.unusable)
        return problem(kCheck, "its policy cannot be used, so every GPU allocation is refused: " + policy.error,
                       "mend " + file + (policy.file.empty() ? "" : "; it is read at once"));
    if (!policy.error.empty())
        return problem(kCheck, "the last edit of its policy is not in force: " + policy.error,
                       "mend " + file + "; until then the last good one is in force");
    std::string what = policy.file;
    if (!policy.rule.empty()) what += (what.empty() ? "" : ", ") + policy.rule;
    if (!policy.cap.empty()) what += (what.empty() ? "" : ", ") + ("CURB_CAP " + policy.cap);
    if (!policy.ceiling.empty()) what += (what.empty() ? "" : ", ") + ("ceiling " + policy.ceiling);
    if (!what.empty()) return ok(kCheck, what);
    note(kCheck, "it has no policy, so curb watches it and holds it to nothing",
         "curb cap " + std::to_string(facts_.pid) + " SIZE sets a cap; curb run --policy FILE gives it a policy");
}

std::string Examination::remedy_for(policy::Obstacle why) const {
    switch (why) {
        case policy::Obstacle::cap: return "curb cap " + std::to_string(facts_.pid) + " SIZE raises the cap";
        case policy::Obstacle::allowance:
            return "growth.start, growth.step and growth.every in its policy let it grow sooner";
        case policy::Obstacle::keep_free:
            return "others have to give memory back, or its policy keeps less free for them";
        case policy::Obstacle::device: return "make room: curb release --all, or end what holds the most";
        case policy::Obstacle::policy: break;
    }
    return "curb policy check";
}

void Examination::gpus(const control::Status &status) {
    bool is_used = false;
    for (const control::GpuStatus &gpu : status.gpus) {
        if (gpu.contexts == 0 && gpu.held == 0) continue;
        is_used = is_used || gpu.contexts > 0;
        const std::string held =
            "cuda:" + std::to_string(gpu.ordinal) + ": " + policy::format_human(gpu.held) +
            (gpu.cap ? " of " + policy::format_human(*gpu.cap) + (gpu.ceiling ? " (the machine's ceiling)" : "")
                     : ", no cap");
        if (facts_.suspended)
            ok("held", held + "; in host memory until it is resumed");
        else if (gpu.cap && gpu.held > *gpu.cap)
            note("held", held + ": more than the cap, as after it was lowered, so no request is served",
                 "curb release " + std::to_string(facts_.pid) +
                     " gives back what is cached; what the program uses is not taken from it");
        else
            ok("held", held);
    }
    for (const control::Waiting &one : status.waits)
        if (has_waited_long(one, facts_.now))
            note("waiting",
                 "it waits on cuda:" + std::to_string(one.gpu) + " for " + wait_text(one, facts_.pid, facts_.now),
                 remedy_for(one.why));
    if (is_used && facts_.listed && !is_listed())
        note("nvml", "NVML does not list it, as in some containers, so what the driver takes for code is not measured",
             "let the container share the machine's pids (docker run --pid=host), if that matters");
}

void Examination::in_effect() {
    const control::Status &status = *facts_.status;
    mapped_library();
    ok("control", facts_.name + " is under curb and answers");
    if (status.version != facts_.version)
        note("version", "its libcurb.so is of version " + status.version + ", and this command of " + facts_.version,
             "restart the program, or use the command of that version");
    policy(status.policy);
    gpus(status);
    if (!status.signal_trouble.empty())
        note("signal", status.signal_trouble + ", so the signal asks for no release",
             "ask by curb release " + std::to_string(facts_.pid) +
                 ", or name another signal in its policy (release.signal)");
    if (std::none_of(status.gpus.begin(), status.gpus.end(), [](const auto &gpu) { return gpu.contexts > 0; }))
        sees_no_gpu("it has no context on a GPU");
    own_limit(status);
    for (const control::Passed &one : status.passed)
        problem("passed", one.library + ": " + one.how + ", so what it takes is seen only by NVML, if at all",
                "open that library without RTLD_DEEPBIND and dlmopen");
    if (status.trace && !status.trace->error.empty())
        problem("trace", "its trace " + status.trace->file + " is not written any more: " + status.trace->error,
                "make room, or correct /trace/file in its policy");
    else if (status.trace && status.trace->dropped != 0)
        note("trace",
             std::to_string(status.trace->dropped) + " events are missing in its trace " + status.trace->file +
                 ", which could not be written fast enough",
             "put the trace on a faster disk");
}

}  // namespace

Findings examine(const ProcessCondition &facts) { return Examination(facts).findings(); }

}  // namespace curb::cli
