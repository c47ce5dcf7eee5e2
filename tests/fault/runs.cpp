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

std::string filled_in(std::string policy, const std::string &folder) {
    for (std::size_t at = 0; (at = policy.find("%d", at)) != std::string::npos;) policy.replace(at, 2, folder);
    return policy;
}

// Where a run has ended that must not: what addr2line -e libcurb.so understands.
void say_where(int signal) {
    std::array<void *, 64> frames;
    ::backtrace_symbols_fd(frames.data(), ::backtrace(frames.data(), static_cast<int>(frames.size())), 2);
    ::signal(signal, SIG_DFL);
    ::raise(signal);
}

// Anonymous memory that children share.
template <class T>
T *shared_with_children() {
    void *memory = ::mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    return new (memory) T;
}

struct Progress {
    std::atomic<std::uint64_t> next{0}, reached{0}, failures{0};
};

}  // namespace

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

const Report &Runs::one(const Trial &trial, std::string &trouble) {
    const Way &way = *trial.way;
    const std::string folder = folder_->path().string(), said = folder + "/said";
    if (*way.policy) folder_->write("policy.json", filled_in(way.policy, folder));
    *shared_ = {};
    std::fflush(nullptr);
    const pid_t child = ::fork();
    if (child == 0) {
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
        if (*way.policy) ::setenv("CURB_POLICY", (folder + "/policy.json").c_str(), 1);
        const auto injector = make_injector_();
        Program program(*injector, trial.fault, *shared_);
        way.run(program);
        injector->pause(true);
        shared_->calls = injector->calls();
        if (const char *failed = injector->failed()) {
            shared_->reached = true;
            std::snprintf(shared_->failed.data(), shared_->failed.size(), "%s", failed);
        }
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
    if (!trouble.empty()) {
        std::stringstream text;
        text << std::ifstream(said).rdbuf();
        trouble += text.str();
    }
    return *shared_;
}

std::uint64_t Runs::calls(const Way &way, bool others) {
    std::string trouble;
    const Report &report = clean_[{&way, others}] = one({&way, {0, 0, others, false}}, trouble);
    if (trouble.empty()) return report.calls;
    std::printf("%s without a fault:\n%s", way.name, trouble.c_str());
    ++failures_;
    return 0;
}

bool Runs::run(const Trial &trial) {
    const Fault &fault = trial.fault;
    std::string trouble;
    const Report &report = one(trial, trouble);
    if (trouble.empty() && same_books_) trouble = difference(trial, clean_.at({trial.way, fault.others}), report);
    if (trouble.empty()) return report.reached;
    if (trouble.back() != '\n') trouble += '\n';
    std::printf("%s, %s%scall %llu (%s) with %d:\n%s", trial.way->name, fault.others ? "others' " : "",
                fault.lasting ? "lasting " : "", static_cast<unsigned long long>(fault.call), report.failed.data(),
                fault.code, trouble.c_str());
    std::fflush(stdout);
    ++failures_;
    return report.reached;
}

std::uint64_t Runs::run(std::vector<Trial> trials, std::uint64_t wanted, std::uint64_t seed) {
    if (trials.empty()) return 0;
    std::shuffle(trials.begin(), trials.end(), std::mt19937_64(seed));
    auto *progress = shared_with_children<Progress>();
    // Most of a run is waiting. Twice as many as faults are wanted is as often as some may miss theirs.
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
        static_cast<void>(folder_.release());  // the parent's
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

}  // namespace fault
