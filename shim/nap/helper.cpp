#include "nap/helper.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <climits>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <vector>

#include "base/waiting.hpp"
#include "control/proc.hpp"
#include "threads/own_thread.hpp"

// libc's clone by its other name: ThreadSanitizer's wrapper of clone assumes that the new process has a copy of the
// memory, and would end this process when it next starts a thread.
extern "C" int __clone(int (*)(void *), void *, int, void *, ...);

namespace curb::shim {
namespace {

// ---- the variables ----

// Those that the command, the driver and NVML read. Not LD_PRELOAD, and none that hides GPUs.
constexpr std::string_view kLibraries = "LD_LIBRARY_PATH=", kKept[] = {"XDG_RUNTIME_DIR=", kLibraries, "CURB_SIM"};
// Their values at the program's start, each with its final zero. Pages without text are never touched.
constinit struct {
    std::array<char, 64 << 10> text{};
    std::size_t size = 0;
} environment;

// ---- the command ----

// Returns the path of the file that this library was loaded from, as the kernel knows it: absolute, without symbolic
// links, and right whatever the program has changed since, its working directory for example. Empty if /proc does not
// show it.
std::string own_path() {
    const auto here = reinterpret_cast<std::uintptr_t>(&own_path);
    const std::string maps = control::file_text("/proc/thread-self/maps").value_or("");
    for (std::size_t at = 0; at < maps.size();) {
        const std::size_t end = std::min(maps.find('\n', at), maps.size());
        const std::string_view line(&maps[at], end - at);  // "7f3b1000-7f3b9000 r-xp 00001000 08:01 123   /a/b.so"
        at = end + 1;
        std::uintptr_t begin = 0, last = 0;
        const char *const rest = std::from_chars(line.begin(), line.end(), begin, 16).ptr;
        if (rest == line.end() || std::from_chars(rest + 1, line.end(), last, 16).ec != std::errc()) continue;
        if (here < begin || here >= last) continue;
        constexpr std::string_view kDeleted = " (deleted)";  // a newer one was installed
        std::string path(line.substr(std::min(line.find('/'), line.size())));
        if (path.ends_with(kDeleted)) path.resize(path.size() - kDeleted.size());
        return path;
    }
    return {};
}

// Returns the command of the same installation, or of the same build: PREFIX/bin/curb for PREFIX/lib/curb/libcurb.so or
// PREFIX/lib/libcurb.so. Empty for another layout.
std::string command() {
    const std::string path = own_path();
    std::string_view folder = path;
    const auto remove_last = [&](std::string_view name) {
        const std::size_t slash = folder.rfind('/');
        if (slash == std::string_view::npos || (!name.empty() && folder.substr(slash + 1) != name)) return false;
        folder = folder.substr(0, slash);
        return true;
    };
    if (!remove_last("")) return {};
    remove_last("curb");
    if (!remove_last("lib")) return {};
    return std::string(folder) + "/bin/curb";
}

// Returns why another user could have put a file or folder there. Empty if none could: it and each folder above it
// belong to root or to this process's user, and only their owner may write them. (A sticky folder may be writable by
// others: what is in it of root's or ours, they cannot replace.) `kind`: S_IFREG or S_IFDIR.
std::string why_not_trusted(const std::string &path, mode_t kind) {
    uid_t real = 0, effective = 0, saved = 0;
    syscall(SYS_getresuid, &real, &effective, &saved);
    const bool has_one_user = real == effective && effective == saved;
    for (std::size_t end = 0;; end = path.find('/', end + 1)) {
        const bool is_last = end == std::string::npos;
        const std::string part = end == 0 ? "/" : path.substr(0, end);
        struct stat status {};
        if (lstat(part.c_str(), &status) != 0) return Helper::kNone;
        const bool is_folder = S_ISDIR(status.st_mode);
        std::string no = "curb does not start ";
        no.append(path).append(" as its helper: ").append(part);
        if ((status.st_mode & S_IFMT) != (is_last ? kind : S_IFDIR))
            return no.append(" is a symbolic link or a special file; install curb as a whole");
        if (status.st_uid != 0 && !(has_one_user && status.st_uid == effective))
            return no.append(" belongs to user ")
                .append(std::to_string(status.st_uid))
                .append("; install curb as root or as the program's user");
        // A group of the owner's number is the owner's alone: many systems give each user one, and umask 002.
        const unsigned others = status.st_gid == status.st_uid ? S_IWOTH : S_IWGRP | S_IWOTH;
        if ((status.st_mode & others) != 0 && !(is_folder && (status.st_mode & S_ISVTX) != 0))
            return no.append(" can be written by others; chmod go-w ").append(part);
        if (is_last) return {};
    }
}

// Returns the folders of LD_LIBRARY_PATH that are trusted, without symbolic links: the program has loaded its libraries
// long ago, and the command loads them now.
std::string trusted_folders(std::string_view folders) {
    std::string out;
    while (!folders.empty()) {
        const std::size_t end = std::min(folders.find_first_of(":;"), folders.size());
        const std::string one(folders.substr(0, end));
        folders.remove_prefix(std::min(end + 1, folders.size()));
        std::array<char, PATH_MAX> found;
        if (!one.starts_with('/') || !realpath(one.c_str(), found.data())) continue;
        if (why_not_trusted(found.data(), S_IFDIR).empty()) out.append(out.empty() ? "" : ":").append(found.data());
    }
    return out;
}

// ---- the two processes ----

struct Plan {
    std::vector<std::string> texts;
    std::string libraries;
    std::vector<char *> arguments, variables;
    // The new processes read only these.
    char *const *argv = nullptr, *const *envp = nullptr;
    int socket = -1;
    pid_t program = 0;
};
// Never destroyed, since the new processes read it. One helper at a time.
Plan &plan() noexcept { return leaked<Plan>(); }

// 1 once the command has been executed, or cannot be.
constinit std::atomic<std::uint32_t> is_begun{0};

// The new processes share our memory, and the stand-in runs beside us. They make only system calls, and none fails of
// those that the stand-in makes while our thread does anything but wait: both have the same errno.
#define CURB_NO_SANITIZE __attribute__((no_sanitize("address", "thread", "undefined")))

CURB_NO_SANITIZE void close_from(unsigned first) {
    // Not SYS_close_range, which glibc has since 2.34.
    if (syscall(__NR_close_range, first, ~0U, 0U) != 0)
        for (unsigned number = first; number < 4096; ++number) syscall(SYS_close, number);
}

CURB_NO_SANITIZE int become_command(void *given) {
    const auto &start = *static_cast<const Plan *>(given);
    for (int number = 0; number < 3; ++number)
        if (start.socket != number) syscall(SYS_dup3, start.socket, number, 0);
    syscall(SYS_fcntl, start.socket, F_SETFL, 0);  // blocking, for all three
    close_from(3);
    constexpr std::uint64_t kNone = 0;
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &kNone, nullptr, sizeof kNone);
    syscall(SYS_execve, start.argv[0], start.argv, start.envp);
    syscall(SYS_exit_group, Helper::kNotExecuted);
    return 0;
}

// The stacks of the two processes. They grow down, so clone gets their ends. They are never in use twice: only the
// thread curb-nap starts helpers, and it waits for the end of each before it starts the next (~Helper).
constexpr std::size_t kStack = 32 << 10;
alignas(16) constinit std::array<char, kStack> stand_in_stack{}, command_stack{};

// The stand-in. Its exit signal is none, so the program's wait() does not find it (only with __WALL). As all threads of
// curb it blocks all signals. It ends with the program, since it keeps the program's memory.
CURB_NO_SANITIZE int stand_in(void *given) {
    // The program's handlers must not run in the command, nor may the kernel discard its end (SIGCHLD ignored).
    const std::uint64_t by_default[4] = {};  // the kernel's struct sigaction
    for (int signal = 1; signal < NSIG; ++signal)
        syscall(SYS_rt_sigaction, signal, by_default, nullptr, sizeof by_default[0]);
    syscall(SYS_prctl, PR_SET_NAME, "curb-helper", 0, 0, 0);
    syscall(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    if (syscall(SYS_getppid) != static_cast<const Plan *>(given)->program) syscall(SYS_exit_group, Helper::kUnknown);
    syscall(SYS_prctl, PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    syscall(SYS_setsid);  // Ctrl-C, and kills of the program's process group, are not for the command
    syscall(SYS_chdir, "/");
    // As with vfork, this continues once the command is executed.
    const int command = __clone(become_command, command_stack.data() + kStack, CLONE_VM | CLONE_VFORK | SIGCHLD, given);
    close_from(0);
    __atomic_store_n(reinterpret_cast<std::uint32_t *>(&is_begun), 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, &is_begun, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
    int status = Helper::kNotExecuted << 8, ended = 0;
    while (command > 0 && ended >= 0 && ended != command)
        ended = static_cast<int>(syscall(SYS_wait4, -1, &status, 0, nullptr));
    constexpr int kNoStatus = 255;  // a filter of system calls forbids wait4
    syscall(SYS_exit_group, ended < 0 ? kNoStatus : (WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status)));
    return 0;
}

bool has_ended(pid_t process) noexcept {
    siginfo_t end{};
    if (syscall(SYS_waitid, P_PID, process, &end, WEXITED | WNOHANG | WNOWAIT | __WALL, nullptr) != 0)
        return errno == ECHILD;
    return end.si_pid != 0;
}

}  // namespace

// Every start of a program pays for this: no variable is read further than it is like one of those wanted.
void Helper::note_environment(const char *const *variables) noexcept {
    for (; *variables; ++variables) {
        for (const std::string_view name : kKept) {
            std::size_t same = 0;
            while (same < name.size() && (*variables)[same] == name[same]) ++same;
            if (same < name.size()) continue;
            const std::size_t size = strlen(*variables) + 1;
            if (size > environment.text.size() - environment.size) continue;
            memcpy(environment.text.data() + environment.size, *variables, size);
            environment.size += size;
        }
    }
}

std::string Helper::why_none() {
    // Its variables are those of a user with fewer rights.
    if (getauxval(AT_SECURE) != 0)
        return "curb starts no helper in a program that is set-user-ID, set-group-ID or has file capabilities";
    const std::string path = command();
    if (path.empty()) return kNone;
    std::string why = why_not_trusted(path, S_IFREG);
    return why.empty() && access(path.c_str(), X_OK) != 0 ? kNone : why;
}

bool Helper::start(std::initializer_list<std::string> words) {
    if (!why_none().empty() || !OwnSocket::may_be_opened()) return false;
    OwnSocket theirs;
    if (!OwnSocket::pair(socket_, theirs)) return false;
    Plan &now = plan();
    now = {};
    now.texts.push_back(command());
    now.texts.insert(now.texts.end(), words);
    for (std::string &text : now.texts) now.arguments.push_back(text.data());
    for (std::size_t at = 0; at < environment.size; at += strlen(&environment.text[at]) + 1) {
        const std::string_view one = &environment.text[at];
        if (one.starts_with(kLibraries))
            now.libraries = std::string(kLibraries) + trusted_folders(one.substr(kLibraries.size()));
        now.variables.push_back(one.starts_with(kLibraries) ? now.libraries.data() : &environment.text[at]);
    }
    now.arguments.push_back(nullptr);
    now.variables.push_back(nullptr);
    now.argv = now.arguments.data();
    now.envp = now.variables.data();
    now.socket = theirs.number();
    now.program = getpid();
    is_begun = 0;
    stand_in_ = __clone(stand_in, stand_in_stack.data() + kStack, CLONE_VM, &now);
    while (stand_in_ > 0 && is_begun == 0 && !has_ended(stand_in_)) futex_wait(is_begun, 0, 10);
    return stand_in_ > 0;
}

bool Helper::tell(const char *line) const noexcept {
    std::array<char, 16> text{};
    const std::size_t size = strlen(line);
    memcpy(text.data(), line, size);
    text[size] = '\n';
    return socket_.ours() && send(socket_.number(), text.data(), size + 1, MSG_NOSIGNAL) >= 0;
}

void Helper::hang_up() noexcept {
    socket_ = {};
    closed_ = true;
}

std::optional<std::string> Helper::take_line() {
    const std::size_t end = text_.find('\n');
    if (end == std::string::npos) return std::nullopt;
    std::string out = text_.substr(0, end);
    text_.erase(0, end + 1);
    return out;
}

std::size_t Helper::receive(char *bytes, std::size_t size, int milliseconds) noexcept {
    closed_ = closed_ || !socket_.ours();  // the program has closed it: the helper finishes and ends
    if (closed_) return 0;
    pollfd one{socket_.number(), POLLIN, 0};
    int ready = 0;
    {
        const own_thread::Asleep asleep;
        ready = poll(&one, 1, milliseconds);
    }
    if (ready == 0) return 0;
    const ssize_t got = ready < 0 ? -1 : recv(socket_.number(), bytes, size, MSG_DONTWAIT);
    if (got > 0) return static_cast<std::size_t>(got);
    closed_ = got == 0 || (errno != EAGAIN && errno != EINTR);
    return 0;
}

std::optional<std::string> Helper::line_now() {
    std::array<char, 4096> bytes;
    text_.append(bytes.data(), receive(bytes.data(), bytes.size(), 0));
    return take_line();
}

std::optional<std::string> Helper::line() {
    for (;;) {
        if (auto found = take_line()) return found;
        if (closed_) return std::nullopt;
        std::array<char, 4096> bytes;
        text_.append(bytes.data(), receive(bytes.data(), bytes.size(), 100));
    }
}

int Helper::end() noexcept {
    if (stand_in_ <= 0) return kNotExecuted;
    int status = 0;
    const auto wait = [&] { return syscall(SYS_wait4, stand_in_, &status, __WALL, nullptr); };
    long ended = -1;
    {
        const own_thread::Asleep asleep;
        while ((ended = wait()) < 0 && errno == EINTR) {
        }
    }
    const bool is_known = ended == stand_in_ && WIFEXITED(status);
    stand_in_ = 0;
    if (is_known) return WEXITSTATUS(status);
    // The stand-in was killed, or the program has waited for it (__WALL). The helper may still be at work: it ends when
    // it closes its end of the socket.
    std::array<char, 256> bytes;
    for (int tenths = 0; tenths < 3000 && !closed_; ++tenths) receive(bytes.data(), bytes.size(), 100);
    return kUnknown;
}

}  // namespace curb::shim
