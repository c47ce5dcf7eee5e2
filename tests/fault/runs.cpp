#include "runs.hpp"

#include <execinfo.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <new>
#include <sstream>

namespace fault {
namespace {

constexpr unsigned kSeconds = 5;  // for one run, on however loaded a machine

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

}  // namespace

Runs::Runs(std::function<std::unique_ptr<Injector>()> make_injector, bool same_books)
    : make_injector_(std::move(make_injector)), same_books_(same_books) {
    void *memory = ::mmap(nullptr, sizeof(Report), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    shared_ = new (memory) Report;
}

const Report &Runs::one(const Way &way, const Fault &fault, std::string &trouble) {
    const std::string folder = folder_.path().string(), said = folder + "/said";
    if (*way.policy) folder_.write("policy.json", filled_in(way.policy, folder));
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
        Program program(*injector, fault, *shared_);
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
    clean_ = one(way, {0, 0, others, false}, trouble);
    if (trouble.empty()) return clean_.calls;
    std::printf("%s without a fault:\n%s", way.name, trouble.c_str());
    ++failures_;
    return 0;
}

bool Runs::run(const Way &way, const Fault &fault) {
    std::string trouble;
    const Report &report = one(way, fault, trouble);
    if (trouble.empty() && same_books_) trouble = difference(way, clean_, report);
    reached_ += report.reached;
    if (trouble.empty()) return report.reached;
    if (trouble.back() != '\n') trouble += '\n';
    std::printf("%s, %s%scall %llu (%s) with %d:\n%s", way.name, fault.others ? "others' " : "",
                fault.lasting ? "lasting " : "", static_cast<unsigned long long>(fault.call), report.failed.data(),
                fault.code, trouble.c_str());
    ++failures_;
    return report.reached;
}

}  // namespace fault
