// A program whose 8 threads allocate without end, and which forks, spawns and clones children in every way there is.
//
// Arguments: [asleep] CHILDREN. At the end it prints the number of children and the bytes that it holds. Then it waits
// until its input ends, so that the test can inspect it. With "asleep" only its children use CUDA.
#include <fcntl.h>
#include <linux/sched.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "abi/cuda_abi.h"
#include "sim.h"

namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr int kErrno = 4711 % 130;
constexpr std::chrono::seconds kPatience{60};

std::atomic<bool> ending{false};
CUcontext context = nullptr;

void allocate_until_told() {
    cuCtxSetCurrent(context);
    std::vector<CUdeviceptr> blocks;
    while (!ending) {
        CUdeviceptr block = 0, pooled = 0;
        if (cuMemAlloc_v2(&block, 3 * kMiB) == CUDA_SUCCESS) blocks.push_back(block);
        cuMemAllocAsync(&pooled, kMiB, nullptr);
        cuMemFreeAsync(pooled, nullptr);
        if (blocks.size() > 4) {
            cuMemFree_v2(blocks.front());
            blocks.erase(blocks.begin());
        }
        usleep(300);  // eight threads may share two cores with the parent
    }
    for (const CUdeviceptr block : blocks) cuMemFree_v2(block);
}

// Prints where each thread of a hanging process is, by /proc and, if it is installed, by gdb.
void show(pid_t pid) {
    const std::string command = "for t in /proc/" + std::to_string(pid) +
                                "/task/*; do cat $t/comm $t/wchan $t/syscall; echo; done >&2; " + "gdb -p " +
                                std::to_string(pid) + " -batch -ex 'thread apply all bt' >&2 2>/dev/null";
    if (std::system(command.c_str()) != 0) std::fprintf(stderr, "(no more is known)\n");
}

[[noreturn]] void fail(const char *way, const char *what, int number) {
    std::fprintf(stderr, "%s: %s: %d\n", way, what, number);
    std::_Exit(1);
}

// Prints without stdio, for children.
void says(const char *text) {
    if (write(1, text, std::strlen(text)) < 0) _exit(97);
}

char *const kWords[] = {const_cast<char *>("sh"), const_cast<char *>("-c"), const_cast<char *>("printf exec; exit 21"),
                        nullptr};

int cannot_use_cuda() {
    CUdeviceptr block = 0;
    std::size_t free_bytes = 0, total = 0;
    if (cuMemAlloc_v2(&block, kMiB) != CUDA_ERROR_NOT_INITIALIZED) return 50;
    if (cuInit(0) != CUDA_ERROR_NOT_INITIALIZED) return 51;
    if (cuMemGetInfo_v2(&free_bytes, &total) != CUDA_ERROR_NOT_INITIALIZED) return 52;
    return 20;
}

int exec_in_clone(void * /*none*/) {
    execv("/bin/sh", kWords);
    return 98;
}

// Forks a child that runs `body` with `out` as its standard output.
pid_t forked(int out, const std::function<int()> &body) {
    errno = kErrno;
    const pid_t child = fork();
    const int after = errno;
    if (child != 0) {
        if (after != kErrno) fail("fork", "it has changed errno in the parent", after);
        return child;
    }
    dup2(out, 1);
    if (after != kErrno) _exit(60);
    std::exit(body());
}

struct Way {
    const char *name;
    std::function<int()> body;  // of the child
    int status;                 // as waitpid has it
    const char *says = "";
    std::function<pid_t(int out, const std::function<int()> &body)> start = {};  // empty: by fork
};

constexpr int exits(int status) { return status << 8; }

int exec() { return execv("/bin/sh", kWords); }

int says_at_exit() {
    std::atexit([] { says("exit"); });
    return 22;
}
int says_and_leaves() {
    says("_exit");
    _exit(23);
}
int leaves_quickly() {
    std::at_quick_exit([] { says("quick"); });
    std::quick_exit(24);
}
int forks_again() {
    const pid_t child = fork();
    if (child == 0) std::exit(cannot_use_cuda() + 5);
    int status = 0;
    waitpid(child, &status, 0);
    return WEXITSTATUS(status);
}
int uses_the_host() {
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i) threads.emplace_back([] { std::string(100'000, 'x').shrink_to_fit(); });
    for (std::thread &thread : threads) thread.join();
    std::FILE *file = std::fopen("/dev/null", "w");
    std::fputs("text", file);
    std::fclose(file);
    return 26;
}

// Runs `start` while `out` is the standard output, and then restores it.
template <class Start>
pid_t with_output(int out, Start start) {
    const int before = dup(1);
    dup2(out, 1);
    const pid_t child = start();
    dup2(before, 1);
    close(before);
    return child;
}
pid_t by_vfork(int out, const std::function<int()> &) {
    return with_output(out, [] {
        errno = kErrno;
        const pid_t child = vfork();
        if (child == 0) {
            execv("/bin/sh", kWords);
            _exit(97);
        }
        if (errno != kErrno) fail("vfork", "it has changed errno in the parent", errno);
        return child;
    });
}
pid_t by_spawn(int out, const std::function<int()> &) {
    return with_output(out, [] {
        pid_t child = -1;
        return posix_spawn(&child, "/bin/sh", nullptr, nullptr, kWords, environ) == 0 ? child : -1;
    });
}
pid_t by_clone_with_memory(int out, const std::function<int()> &) {
    std::vector<char> stack(256 * 1024);
    return with_output(out, [&] {
        return clone(exec_in_clone, stack.data() + stack.size() - 64, CLONE_VM | CLONE_VFORK | SIGCHLD, nullptr);
    });
}
// Makes a child for which no fork handler runs, so it may call little more than exec and _exit.
template <pid_t (*make)()>
pid_t without_handlers(int out, const std::function<int()> &body) {
    const pid_t child = make();
    if (child != 0) return child;
    dup2(out, 1);
    _exit(body());
}
pid_t cloned() { return static_cast<pid_t>(syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr)); }
pid_t cloned3() {
    clone_args how{};
    how.exit_signal = SIGCHLD;
    return static_cast<pid_t>(syscall(SYS_clone3, &how, sizeof how));
}
int says_clone() { return says("clone"), 27; }
int says_fork() { return says("_Fork"), 28; }

const std::vector<Way> kWays{
    {"allocates", cannot_use_cuda, exits(20)},
    {"exec", exec, exits(21), "exec"},
    {"exit", says_at_exit, exits(22), "exit"},
    {"_exit", says_and_leaves, exits(23), "_exit"},
    {"quick_exit", leaves_quickly, exits(24), "quick"},
    {"forks again", forks_again, exits(25)},
    {"is killed", [] { return raise(SIGKILL); }, SIGKILL},
    {"dies of the release signal", [] { return raise(SIGUSR1); }, SIGUSR1},
    {"allocates host memory, starts threads", uses_the_host, exits(26)},
    {"vfork", {}, exits(21), "exec", by_vfork},
    {"posix_spawn", {}, exits(21), "exec", by_spawn},
    {"clone with CLONE_VM and CLONE_VFORK", {}, exits(21), "exec", by_clone_with_memory},
    {"clone", says_clone, exits(27), "clone", without_handlers<cloned>},
    {"clone3 and exec", exec, exits(21), "exec", without_handlers<cloned3>},
    {"_Fork", says_fork, exits(28), "_Fork", without_handlers<_Fork>},
};

// Waits for the child. Returns its status as waitpid does. Fails the program if the child hangs.
int status_of(pid_t child, const char *way) {
    const auto until = std::chrono::steady_clock::now() + kPatience;
    int status = 0;
    for (useconds_t pause = 100;; pause = pause < 5000 ? pause * 2 : pause) {
        const pid_t ended = waitpid(child, &status, WNOHANG);
        if (ended == child) return status;
        if (ended < 0) fail(way, "waitpid", errno);
        if (std::chrono::steady_clock::now() > until) {
            show(child);
            kill(child, SIGKILL);
            fail(way, "it hangs", child);
        }
        usleep(pause);
    }
}

void see(const Way &way) {
    int pipe[2];
    if (pipe2(pipe, O_CLOEXEC) != 0) fail(way.name, "pipe2", errno);
    const pid_t child = way.start ? way.start(pipe[1], way.body) : forked(pipe[1], way.body);
    if (child <= 0) fail(way.name, "no child", errno);
    const int status = status_of(child, way.name);
    close(pipe[1]);
    std::string said;
    char block[256];
    for (ssize_t got = 0; (got = read(pipe[0], block, sizeof block)) > 0;)
        said.append(block, static_cast<std::size_t>(got));
    close(pipe[0]);
    if (status != way.status) fail(way.name, "status", status);
    if (said != way.says) fail(way.name, said.c_str(), static_cast<int>(said.size()));
}

// Runs in a child, which is the first to use CUDA.
int uses_cuda() {
    CUdeviceptr block = 0;
    if (cuInit(0) != CUDA_SUCCESS || cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS) return 40;
    cuCtxSetCurrent(context);
    if (cuMemAlloc_v2(&block, 4 * kMiB) != CUDA_SUCCESS) return 41;
    return cuMemFree_v2(block) == CUDA_SUCCESS ? 29 : 42;
}

// The first thread leaves while another one, which uses CUDA first, goes on.
int leaves_to_a_thread() {
    std::thread([] {
        if (uses_cuda() != 29) _exit(43);
    }).detach();
    pthread_exit(nullptr);
}
int uses_cuda_and_leaves() {
    if (uses_cuda() != 29) _exit(44);
    std::thread([] { usleep(1000); }).detach();
    pthread_exit(nullptr);
}
pid_t by_another_thread(int out, const std::function<int()> &body) {
    pid_t child = -1;
    std::thread([&] { child = forked(out, body); }).join();
    return child;
}

const std::vector<Way> kAsleep{
    {"uses CUDA first", uses_cuda, exits(29)},
    {"uses CUDA first, and its first thread leaves", leaves_to_a_thread, 0},
    {"forked by another thread, uses CUDA first, and leaves", uses_cuda_and_leaves, 0, "", by_another_thread},
    {"spawned, without CUDA", exec, exits(21), "exec"},
};

int wait_for_end() {
    char byte = 0;
    return read(0, &byte, 1) == 0 ? 0 : 3;
}

}  // namespace

int main(int argc, char **argv) {
    const bool asleep = argc > 1 && std::strcmp(argv[1], "asleep") == 0;
    const int count = std::atoi(argv[asleep ? 2 : 1]);
    if (asleep) {
        for (int i = 0; i < count; ++i) see(kAsleep[static_cast<std::size_t>(i) % kAsleep.size()]);
        std::printf("%d\n", count);
        std::fflush(stdout);
        return wait_for_end();
    }
    if (cuInit(0) != CUDA_SUCCESS || cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS) return 2;
    cuCtxSetCurrent(context);
    std::vector<std::thread> threads;
    for (int i = 0; i < 8; ++i) threads.emplace_back(allocate_until_told);
    for (int i = 0; i < count; ++i) {
        if (i % 3 == 0 && std::getenv("LD_PRELOAD")) kill(getpid(), SIGUSR1);  // a release is under way while it forks
        see(kWays[static_cast<std::size_t>(i) % kWays.size()]);
    }
    ending = true;
    for (std::thread &thread : threads) thread.join();
    CUmemoryPool pool = nullptr;
    cuCtxSynchronize();
    cuDeviceGetDefaultMemPool(&pool, 0);
    cuMemPoolTrimTo(pool, 0);
    std::printf("%d %llu\n", count, static_cast<unsigned long long>(curb_sim_held(0)));
    std::fflush(stdout);
    return wait_for_end();
}
