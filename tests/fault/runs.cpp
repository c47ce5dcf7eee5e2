#include "runs.hpp"

#include <execinfo.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <new>
#include <random>
#include <sstream>

namespace fault {
namespace {

constexpr unsigned kSeconds = 60;  // for one run, on however loaded a machine

std::string filled_in(std::string policy, const std::string &folder, bool blocks) {
    constexpr std::string_view kVersion = R"({"version": 1)";
    if (blocks)
        policy = std::string(kVersion) + R"(, "suspend": {"idle": "1h", "light": true, "deep": "never"})" +
                 (policy.empty() ? "}" : policy.substr(kVersion.size()));
    for (std::size_t at = 0; (at = policy.find("%d", at)) != std::string::npos;) policy.replace(at, 2, folder);
    return policy;
}

// Prints the stack of a run that crashes, for addr2line -e libcurb.so.
void say_where(int signal) {
    std::array<void *, 64> frames;
    ::backtrace_symbols_fd(frames.data(), ::backtrace(frames.data(), static_cast<int>(frames.size())), 2);
    ::signal(signal, SIG_DFL);
    ::raise(signal);
}

// Returns an object in anonymous memory, which children share.
template <class T>
T *shared_with_children() {
    void *memory = ::mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    return new (memory) T;
}

// For cases, which make calls fail themselves.
class NoFault final : public Injector {
  public:
    void plan(const Fault & /*fault*/) override {}
    void pause(bool /*pause*/) override {}
    const char *failed() override { return nullptr; }
    std::uint64_t calls() override { return 0; }
    [[nodiscard]] bool is_of_driver() const override { return true; }
};

// Runs the way once, and fills in the report.
void do_once(const Way &way, Injector &injector, const Fault &fault, Report &report) {
    Program program(injector, fault, report);
    way.run(program);
    injector.pause(true);
    report.calls = injector.calls();
    if (const char *failed = injector.failed()) {
        report.reached = true;
        std::snprintf(report.failed.data(), report.failed.size(), "%s", failed);
    }
}

struct Progress {
    std::atomic<std::uint64_t> next{0}, reached{0}, failures{0};
};

std::string text_of(const std::string &file) {
    std::stringstream text;
    text << std::ifstream(file).rdbuf();
    return text.str();
}

std::string name_of(const Trial &trial, const char *failed) {
    return std::string(trial.way->name) + ", " + (trial.fault.blocks ? "with blocks of curb's, " : "") +
           (trial.fault.others ? "others' " : "") + (trial.fault.lasting ? "lasting " : "") + "call " +
           std::to_string(trial.fault.call) + " (" + failed + ") with " + std::to_string(trial.fault.code);
}

}  // namespace

// The state of many runs in one process, in memory shared with the parent.
struct Runs::Sweep {
    static constexpr std::size_t kMostSuspects = 16;
    struct Suspect {
        Fault fault;
        std::array<char, 64> failed{};
        std::array<char, 2000> text{};
    };

    void suspect(const Fault &fault, const char *failed, const std::string &text) {
        if (count == kMostSuspects) return;
        Suspect &one = suspects[count++];
        one.fault = fault;
        std::snprintf(one.failed.data(), one.failed.size(), "%s", failed);
        std::snprintf(one.text.data(), one.text.size(), "%s", text.c_str());
    }

    Fault only;  // if it has a call: the only fault to try
    Fault now;
    std::size_t next = 0, all = 0;
    std::uint64_t reached = 0;
    std::chrono::steady_clock::time_point until;
    std::size_t count = 0;
    std::array<Suspect, kMostSuspects> suspects;
};

std::uint64_t seed() {
    const char *given = std::getenv("CURB_SEED");
    return given ? std::strtoull(given, nullptr, 10) : std::random_device()();
}

Runs::Runs(std::function<std::unique_ptr<Injector>()> make_injector, bool same_books)
    : make_injector_(std::move(make_injector)), same_books_(same_books) {
    take_places();
}

void Runs::take_places() {
    folder_ = std::make_unique<TempDir>();
    shared_ = shared_with_children<Report>();
}

// Sends the child's output to the file `said`, and sets its environment.
void Runs::begin_child(const Way &way, bool blocks) const {
    const std::string folder = folder_->path().string(), said = (*folder_ / "said").string();
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::alarm(kSeconds);
    for (const int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE}) ::signal(signal, say_where);
    const int file = ::open(said.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0666);
    ::dup2(file, 1);
    ::dup2(file, 2);
    ::close(file);
    ::setenv("XDG_RUNTIME_DIR", folder.c_str(), 1);
    ::setenv("HOME", folder.c_str(), 1);
    ::unsetenv("XDG_CONFIG_HOME");
    ::unsetenv("CURB_CAP");
    ::unsetenv("CURB_POLICY");
    if (*way.policy || blocks) ::setenv("CURB_POLICY", (folder + "/policy.json").c_str(), 1);
}

void Runs::write_policy(const Way &way, bool blocks) const {
    folder_->write("policy.json", filled_in(way.policy, folder_->path().string(), blocks));
}

const Report &Runs::one(const Trial &trial, std::string &trouble) {
    const Way &way = *trial.way;
    const std::string said = (*folder_ / "said").string();
    write_policy(way, trial.fault.blocks);
    *shared_ = {};
    std::fflush(nullptr);
    const pid_t child = ::fork();
    if (child == 0) {
        begin_child(way, trial.fault.blocks);
        const auto injector = make_injector_();
        do_once(way, *injector, trial.fault, *shared_);
        shared_->complete = true;
        std::exit(0);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    trouble = shared_->problem.data();
    if (WIFSIGNALED(status))
        trouble += WTERMSIG(status) == SIGALRM ? "it hangs\n"
                                               : std::string("it dies of ") + strsignal(WTERMSIG(status)) + "\n";
    else if (WEXITSTATUS(status) != 0 || !shared_->complete)
        trouble += "it ends with " + std::to_string(WEXITSTATUS(status)) + "\n";
    if (!trouble.empty()) trouble += text_of(said);
    return *shared_;
}

std::uint64_t Runs::calls(const Way &way, bool others, bool blocks) {
    std::string trouble;
    const Report &report = clean_[{&way, others, blocks}] = one({&way, {0, 0, others, false, blocks}}, trouble);
    if (trouble.empty()) return report.calls;
    std::printf("%s%s without a fault:\n%s", way.name, blocks ? " with blocks of curb's" : "", trouble.c_str());
    ++failures_;
    return 0;
}

bool Runs::run(const Trial &trial) {
    const Fault &fault = trial.fault;
    std::string trouble;
    const Report &report = one(trial, trouble);
    // Memory that a program has unmapped and the driver does not release is left to the overhead: cuMemUnmap has
    // succeeded, and the program has no handle of it.
    const bool is_left = fault.blocks && std::string_view(trial.way->name).starts_with("mapping") &&
                         std::strcmp(report.failed.data(), "cuMemRelease") == 0;
    if (trouble.empty() && same_books_ && !is_left)
        trouble = difference(trial, clean_.at({trial.way, fault.others, fault.blocks}), report);
    if (trouble.empty()) return report.reached;
    if (trouble.back() != '\n') trouble += '\n';
    std::printf("%s:\n%s", name_of(trial, report.failed.data()).c_str(), trouble.c_str());
    std::fflush(stdout);
    ++failures_;
    return report.reached;
}

std::uint64_t Runs::run(std::vector<Trial> trials, std::uint64_t wanted, std::uint64_t seed) {
    if (trials.empty()) return 0;
    std::shuffle(trials.begin(), trials.end(), std::mt19937_64(seed));
    auto *progress = shared_with_children<Progress>();
    // A run mostly waits. Some do not reach their fault, so there may be 2 * `wanted` more runs than trials.
    constexpr int kAtOnce = 8;
    std::fflush(nullptr);
    std::vector<pid_t> children;
    for (int i = 0; i < kAtOnce; ++i) {
        const pid_t child = ::fork();
        if (child != 0) {
            children.push_back(child);
            continue;
        }
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        static_cast<void>(folder_.release());  // the parent deletes it
        take_places();
        failures_ = 0;
        std::uint64_t index = 0;
        while (progress->reached < wanted && (index = progress->next++) < 2 * wanted + trials.size())
            progress->reached += run(trials[index % trials.size()]);
        progress->failures += failures_;
        folder_.reset();
        std::fflush(nullptr);
        ::_exit(0);
    }
    for (const pid_t child : children) {
        int status = 0;
        if (::waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 0) ++failures_;
    }
    failures_ += progress->failures;
    if (failures_ != 0) std::printf("the same again: CURB_SEED=%llu\n", static_cast<unsigned long long>(seed));
    return progress->reached;
}

void Runs::sweep_in_child(const Way &way, bool others, const std::vector<int> &codes, std::uint64_t seed,
                          Sweep &sweep) {
    begin_child(way, false);
    const auto injector = make_injector_();
    CUcontext kept = nullptr;
    injector->pause(true);
    cuInit(0);
    cuDevicePrimaryCtxRetain(&kept, 0);
    const auto run = [&](const Fault &fault) {
        Report report;
        ::alarm(kSeconds);
        sweep.now = fault;
        do_once(way, *injector, fault, report);
        cuDevicePrimaryCtxRelease_v2(0);  // the reference that start() took
        return report;
    };
    const Fault none{0, 0, others, false};
    run(none);  // a driver takes some memory only once
    Report clean = run(none);
    if (const Report second = run(none); clean.books != second.books) {
        // Some memory comes back only with the context, so each run gets its own.
        cuDevicePrimaryCtxRelease_v2(0);
        clean = run(none);
    }
    if (clean.problem[0] != 0) return sweep.suspect(none, "nothing", clean.problem.data());
    std::vector<Fault> faults;
    for (std::uint64_t call = 1; call <= clean.calls; ++call)
        for (const int code : codes) faults.push_back({call, code, others, false});
    std::shuffle(faults.begin(), faults.end(), std::mt19937_64(seed));
    if (sweep.only.call != 0) faults = {sweep.only};
    for (sweep.all = faults.size(); sweep.next < faults.size(); ++sweep.next) {
        if (std::chrono::steady_clock::now() > sweep.until) return;
        const Trial trial{&way, faults[sweep.next]};
        const Report report = run(trial.fault);
        sweep.reached += report.reached;
        std::string trouble = report.problem.data();
        if (trouble.empty() && same_books_) trouble = difference(trial, clean, report);
        if (trouble.empty()) continue;
        sweep.suspect(trial.fault, report.failed.data(), trouble);
        clean = run(none);
    }
}

bool Runs::swept(const Way &way, bool others, const std::vector<int> &codes, std::uint64_t seed, Sweep &sweep) {
    write_policy(way, false);
    std::fflush(nullptr);
    const pid_t child = ::fork();
    if (child == 0) {
        sweep_in_child(way, others, codes, seed, sweep);
        std::exit(0);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return true;
    const bool hangs = WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM;
    const std::string how = hangs ? "it hangs" : "it ends with status " + std::to_string(status);
    sweep.suspect(sweep.now, "unknown", how + "\n" + text_of((*folder_ / "said").string()));
    return false;
}

std::uint64_t Runs::sweep(const Way &way, bool others, const std::vector<int> &codes, std::chrono::seconds most,
                          std::uint64_t seed) {
    auto *sweep = shared_with_children<Sweep>(), *alone = shared_with_children<Sweep>();
    sweep->until = std::chrono::steady_clock::now() + most;
    alone->until = std::chrono::steady_clock::time_point::max();
    constexpr int kEnds = 3;  // processes that may die of a fault
    for (int ends = 0; ends < kEnds && !swept(way, others, codes, seed, *sweep); ++ends) {
        if (sweep->now.call == 0) break;
        ++sweep->next;
    }
    std::uint64_t failures = 0;
    for (std::size_t i = 0; i < sweep->count; ++i) {
        const Sweep::Suspect &suspect = sweep->suspects[i];
        const Trial trial{&way, suspect.fault};
        if (suspect.fault.call != 0) {
            alone->only = suspect.fault;
            alone->next = alone->count = 0;
            swept(way, others, codes, seed, *alone);
        }
        const bool again = suspect.fault.call == 0 || alone->count != 0;
        failures += again;
        std::printf("%s%s:\n%s\n", name_of(trial, suspect.failed.data()).c_str(),
                    again ? "" : ", but not in a process of its own", suspect.text.data());
    }
    failures_ += failures;
    std::printf("%s, %s: %llu of %zu faults, %llu wrong\n", way.name, others ? "others" : "its own",
                static_cast<unsigned long long>(sweep->reached), sweep->all, static_cast<unsigned long long>(failures));
    std::fflush(stdout);
    return sweep->reached;
}

int run_cases(int argc, char **argv) {
    Runs runs([] { return std::make_unique<NoFault>(); }, true);
    std::size_t cases = 0;
    for (const Way &way : ways()) {
        if (argc > 1 && std::strcmp(argv[1], way.name) != 0) continue;
        runs.calls(way, false);
        ++cases;
    }
    std::printf("%zu cases, %llu failed\n", cases, static_cast<unsigned long long>(runs.failures()));
    return runs.failures() != 0 || cases == 0;
}

}  // namespace fault
