#include "helper.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <string_view>
#include <vector>

#include "control/proc.hpp"
#include "own_thread.hpp"
#include "real_libc.hpp"

// libc's clone by its other name: ThreadSanitizer's wrapper of clone assumes that the new process has a copy of the
// memory, and would end this process when it next starts a thread.
extern "C" int __clone(int (*)(void *), void *, int, void *, ...);

namespace curb::shim {
namespace {

// The variables that the command, the driver and NVML read. Not LD_PRELOAD, and none that hides GPUs.
constexpr std::string_view kKept[] = {"HOME=", "PATH=", "XDG_RUNTIME_DIR=", "LD_LIBRARY_PATH=", "CURB_SIM"};

// Returns these variables with the values at the program's start: another thread may be changing environ.
std::vector<std::string> environment() {
    std::vector<std::string> kept;
    constexpr std::size_t kMost = 1 << 20;
    const std::string all = control::proc_text(getpid(), "environ", kMost);
    for (std::size_t at = 0; at < all.size(); at += std::strlen(&all[at]) + 1)
        for (const std::string_view name : kKept)
            if (std::string_view(&all[at]).starts_with(name)) kept.emplace_back(&all[at]);
    return kept;
}

// Returns the path of the command, found from this library's: PREFIX/bin/curb beside PREFIX/lib, lib/curb or
// lib/TRIPLET/curb. Empty if there is none.
std::string command() {
    Dl_info self{};
    if (dladdr(reinterpret_cast<const void *>(&command), &self) == 0 || !self.dli_fname) return {};
    std::string folder = self.dli_fname;
    for (int up = 0; up < 4; ++up) {
        const std::size_t slash = folder.rfind('/');
        if (slash == std::string::npos) break;
        folder.resize(slash);
        if (std::string path = folder + "/bin/curb"; access(path.c_str(), X_OK) == 0) return path;
    }
    return {};
}

struct Start {
    const char *path;
    char *const *arguments;
    char *const *variables;
    int socket;
};

// Runs in the new process, which shares our memory: makes only system calls, and changes nothing that the program could
// see.
int become(void *given) {
    const auto &start = *static_cast<const Start *>(given);
    // A signal for this process must not run the program's handler here.
    struct sigaction by_default {};
    by_default.sa_handler = SIG_DFL;
    for (int signal = 1; signal < NSIG; ++signal) real::sigaction()(signal, &by_default, nullptr);
    for (int number = 0; number < 3; ++number)
        if (start.socket != number) syscall(SYS_dup3, start.socket, number, 0);
    fcntl(start.socket, F_SETFL, 0);  // blocking, for all three
    // Not SYS_close_range, which glibc has since 2.34.
    if (syscall(__NR_close_range, 3U, ~0U, 0U) != 0)
        for (int number = 3; number < 4096; ++number) close(number);
    sigset_t none;
    sigemptyset(&none);
    pthread_sigmask(SIG_SETMASK, &none, nullptr);
    syscall(SYS_execve, start.path, start.arguments, start.variables);
    syscall(SYS_exit_group, Helper::kNotExecuted);
    return 0;
}

// The new process's stack until it executes the command. It grows down, so clone gets its end.
alignas(16) constinit std::array<char, 65'536> stack{};

}  // namespace

bool Helper::start(std::initializer_list<std::string> words) {
    std::string path = command();
    if (path.empty() || !OwnSocket::may_be_opened()) return false;
    OwnSocket theirs;
    if (!OwnSocket::pair(socket_, theirs)) return false;
    std::vector<std::string> texts{path};
    texts.insert(texts.end(), words);
    std::vector<char *> arguments, variables;
    for (std::string &text : texts) arguments.push_back(text.data());
    std::vector<std::string> kept = environment();
    for (std::string &text : kept) variables.push_back(text.data());
    arguments.push_back(nullptr);
    variables.push_back(nullptr);
    Start start{path.c_str(), arguments.data(), variables.data(), theirs.number()};
    // Without a signal for its end, the program's wait() does not find it (only with __WALL). As with vfork, this
    // thread continues once the command is executed. (All signals are blocked in curb's threads.)
    pid_ = __clone(become, stack.data() + stack.size(), CLONE_VM | CLONE_VFORK, &start);
    return pid_ > 0;
}

void Helper::tell(const char *line) const noexcept {
    for (const std::string_view part : {std::string_view(line), std::string_view("\n")})
        if (!socket_.ours() || send(socket_.number(), part.data(), part.size(), MSG_NOSIGNAL) < 0) return;
}

std::optional<std::string> Helper::take_line() {
    const std::size_t end = text_.find('\n');
    if (end == std::string::npos) return std::nullopt;
    std::string out = text_.substr(0, end);
    text_.erase(0, end + 1);
    return out;
}

void Helper::read_for(int milliseconds) {
    if (!socket_.ours()) {  // the program has closed it: the helper finishes and ends
        closed_ = true;
        return;
    }
    pollfd one{socket_.number(), POLLIN, 0};
    {
        const own_thread::Asleep asleep;
        if (poll(&one, 1, milliseconds) <= 0) return;
    }
    std::array<char, 4096> bytes;
    const ssize_t got = recv(socket_.number(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got > 0) text_.append(bytes.data(), static_cast<std::size_t>(got));
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) closed_ = true;
}

int Helper::end() noexcept {
    if (pid_ <= 0) return kNotExecuted;
    const own_thread::Asleep asleep;
    int status = 0;
    while (syscall(SYS_wait4, pid_, &status, __WALL, nullptr) < 0 && errno == EINTR) {
    }
    pid_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace curb::shim
