// SIGUSR1 to every thread of a program under curb that allocates, calls malloc, reads and computes, with a handler of
// the program's own or none.
//
// Arguments: the number of signals, and the handler: "none", "siginfo", "restart", "resethand", "nodefer", "altstack".
// A thread gets its next signal only when it has handled the last one, since the kernel merges pending signals; each
// must arrive. The program also sends signals to the whole process and to all threads in /proc/self/task. The last line
// on stdout is the number that arrived.
#include <dirent.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "../../process/helpers/within.hpp"
#include "sim.h"
#include "traffic.hpp"

namespace {

std::atomic<int> wrong{0};
void say(bool right, const char *what) {
    if (right) return;
    if (wrong++ < 20) std::fprintf(stderr, "not so: %s\n", what);
}

constexpr int kErrno = 4711;

// Pauses between two rounds of a thread, so that the others have a turn. A signal ends the pause.
void rest() { usleep(20); }

enum class Handler { none, siginfo, restart, resethand, nodefer, altstack };

// A thread to which main() sends signals.
struct Target {
    std::atomic<std::uint64_t> sent{0}, handled{0};
    pid_t tid = 0;
    std::unique_ptr<char[]> stack;
    std::thread thread;
};
constexpr std::size_t kStack = std::size_t{64} << 10;
thread_local Target *self = nullptr;

std::atomic<bool> done{false};
std::mutex raising;
std::atomic<std::uint64_t> strays{0};  // handled by threads that are no targets
Handler how = Handler::none;

void set_handler();

void note() {
    if (!self) {
        ++strays;
        return;
    }
    if (how == Handler::altstack) {
        // Not a local's address: AddressSanitizer may keep locals elsewhere.
        const char *here = static_cast<char *>(__builtin_frame_address(0)), *low = self->stack.get();
        say(std::less_equal<>()(low, here) && std::less<>()(here, low + kStack), "the handler is on its own stack");
    }
    ++self->handled;
}
void on_signal(int) { note(); }
void on_signal_once(int) {
    set_handler();
    note();
}
void on_information(int number, siginfo_t *info, void *context) {
    say(number == SIGUSR1 && info && info->si_pid == getpid() && context, "the handler knows the sender");
    if (info->si_code == SI_TKILL) note();
}

void set_handler() {
    struct sigaction action {};
    action.sa_handler = on_signal;
    switch (how) {
        case Handler::none: return;
        case Handler::siginfo:
            action.sa_sigaction = on_information;
            action.sa_flags = SA_SIGINFO;
            break;
        case Handler::restart: action.sa_flags = SA_RESTART; break;
        case Handler::resethand:
            action.sa_handler = on_signal_once;
            action.sa_flags = static_cast<int>(static_cast<unsigned>(SA_RESETHAND));
            break;
        case Handler::nodefer: action.sa_flags = SA_NODEFER; break;
        case Handler::altstack: action.sa_flags = SA_ONSTACK | SA_RESTART; break;
    }
    say(sigaction(SIGUSR1, &action, nullptr) == 0, "a handler can be set");
}

// Holds malloc's locks most of the time.
void call_malloc() {
    std::vector<void *> blocks(64);
    for (unsigned i = 0; !done; ++i) {
        void *&block = blocks[i % blocks.size()];
        std::free(block);
        block = std::malloc(i * 7919U % (i % 16 == 0 ? 400'000 : 2000) + 1);
        say(block != nullptr, "malloc has memory");
        if (i % 64 == 0) rest();
    }
    for (void *block : blocks) std::free(block);
}

void keep_errno() {
    while (!done) {
        errno = kErrno;
        for (int i = 0; i < 100'000 && errno == kErrno; ++i) {
        }
        say(errno == kErrno, "errno is kept");
        rest();
    }
}

// Reads from a pipe, which main() writes to now and then. Only handlers that would interrupt the read without curb may.
int ends[2];
void read_on() {
    const bool may_be_interrupted = how == Handler::siginfo || how == Handler::nodefer || how == Handler::resethand;
    for (char byte = 0; byte != 'e';) {
        const ssize_t got = read(ends[0], &byte, 1);
        say(got == 1 || (got < 0 && errno == EINTR && may_be_interrupted), "a read goes on after a signal");
    }
}

void allocate(CUcontext context) {
    say(cuCtxSetCurrent(context) == CUDA_SUCCESS, "the context can be set");
    while (!done) {
        CUdeviceptr plain = 0, async = 0;
        errno = kErrno;
        const CUresult results[] = {cuMemAlloc_v2(&plain, 3 * load::kMiB),
                                    cuMemAllocAsync(&async, load::kMiB, nullptr)};
        for (const CUresult result : results)
            say(result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY, "an allocation succeeds or is refused");
        if (plain) say(cuMemFree_v2(plain) == CUDA_SUCCESS, "what was allocated can be freed");
        if (async) say(cuMemFreeAsync(async, nullptr) == CUDA_SUCCESS, "what a pool gave can be freed");
        say(errno == kErrno, "errno is kept by calls of the driver");
        rest();
    }
}

template <class Body>
std::unique_ptr<Target> target(Body body) {
    auto out = std::make_unique<Target>();
    std::atomic<bool> ready{false};
    out->thread = std::thread([&ready, body, target = out.get()] {
        self = target;
        target->tid = static_cast<pid_t>(syscall(SYS_gettid));
        target->stack = std::make_unique<char[]>(kStack);
        const stack_t stack{.ss_sp = target->stack.get(), .ss_flags = 0, .ss_size = kStack};
        say(sigaltstack(&stack, nullptr) == 0, "a stack for signals can be set");
        ready = true;
        body();
        // raise() returns when the signal has been handled. A one-shot handler is the whole process's, and unset while
        // another thread's signal has just used it, so these threads take turns.
        ++target->sent;
        {
            std::unique_lock<std::mutex> turn(raising, std::defer_lock);
            if (how == Handler::resethand) turn.lock();
            raise(SIGUSR1);
        }
        if (how == Handler::none) target->handled = target->sent.load();
        const stack_t none{.ss_sp = nullptr, .ss_flags = SS_DISABLE, .ss_size = 0};
        sigaltstack(&none, nullptr);
        while (target->handled < target->sent) rest();
    });
    while (!ready) sched_yield();
    return out;
}

// True if no signal is on its way to the thread. Without a handler of the program's, is_pending() asks the kernel.
bool is_free(const Target &one) { return one.handled == one.sent; }
bool is_pending(pid_t tid) {
    const std::string path = "/proc/self/task/" + std::to_string(tid) + "/status";
    FILE *file = std::fopen(path.c_str(), "re");
    if (!file) return false;
    unsigned long long pending = 0;
    char line[256];
    while (std::fgets(line, sizeof line, file))
        if (std::sscanf(line, "SigPnd: %llx", &pending) == 1) break;
    std::fclose(file);
    return (pending >> (SIGUSR1 - 1)) & 1;
}

void to_all_threads() {
    DIR *tasks = opendir("/proc/self/task");
    if (!tasks) return;
    while (const dirent *task = readdir(tasks))
        if (const int tid = std::atoi(task->d_name)) syscall(SYS_tgkill, getpid(), tid, SIGUSR1);
    closedir(tasks);
}

}  // namespace

int main(int argc, char **argv) {
    const char *names[] = {"none", "siginfo", "restart", "resethand", "nodefer", "altstack"};
    const auto name = argc == 3 ? std::find(std::begin(names), std::end(names), std::string(argv[2])) : std::end(names);
    if (name == std::end(names)) {
        std::fprintf(stderr, "usage: %s SIGNALS none|siginfo|restart|resethand|nodefer|altstack\n", argv[0]);
        return 2;
    }
    how = static_cast<Handler>(name - names);
    const std::uint64_t wanted = std::strtoull(argv[1], nullptr, 10);
    set_handler();
    load::Traffic traffic({.threads = 4, .blocks = 512, .devices = 1, .seed = wanted, .pause_us = 500});
    CUcontext context = nullptr;
    say(cuCtxGetCurrent(&context) == CUDA_SUCCESS && pipe(ends) == 0, "it can begin");
    const bool own = how != Handler::none, one_at_a_time = how == Handler::resethand;
    std::vector<std::unique_ptr<Target>> targets;
    targets.push_back(target(call_malloc));
    targets.push_back(target(call_malloc));
    targets.push_back(target(keep_errno));
    targets.push_back(target(read_on));
    for (int i = 0; i < 2; ++i) targets.push_back(target([=] { allocate(context); }));
    traffic.work(1ULL << 60);
    std::uint64_t sent = 0;
    for (std::uint64_t turn = 0; sent < wanted; ++turn) {
        Target &one = *targets[turn % targets.size()];
        const bool free = own ? is_free(one) : !is_pending(one.tid);
        if (!free || (one_at_a_time && sent != 0 && !is_free(*targets[(turn - 1) % targets.size()]))) {
            rest();
            if (one_at_a_time) --turn;
            continue;
        }
        if (!own) one.handled = one.sent.load();
        ++one.sent;
        say(syscall(SYS_tgkill, getpid(), one.tid, SIGUSR1) == 0, "a thread can be sent a signal");
        ++sent;
        if (sent % 64 == 0) say(write(ends[1], "x", 1) == 1, "the reader can be written to");
        // Any thread may get a signal to the process: only for a handler that can tell it apart, or for none.
        if (sent % 1024 == 0 && (!own || how == Handler::siginfo)) kill(getpid(), SIGUSR1);
    }
    for (const auto &one : targets)
        while (own ? !is_free(*one) : is_pending(one->tid)) rest();
    done = true;
    say(write(ends[1], "e", 1) == 1, "the reader can be ended");
    std::uint64_t arrived = 0;
    for (const auto &one : targets) {
        one->thread.join();
        if (!own) one->handled = one->sent.load();
        arrived += one->handled;
    }
    traffic.stop();
    say(arrived >= wanted, "every signal has arrived");
    say(traffic.counts().wrong == 0, "calls fail with refusals alone");
    // A signal still causes a release.
    traffic.give_everything_back();
    const std::uint64_t before = curb_sim_held(0);
    CUdeviceptr block = 0;
    CUmemoryPool pool = nullptr;
    std::uint64_t everything = ~0ULL;
    say(cuDeviceGetDefaultMemPool(&pool, 0) == CUDA_SUCCESS &&
            cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &everything) == CUDA_SUCCESS &&
            cuMemAllocAsync(&block, 256 * load::kMiB, nullptr) == CUDA_SUCCESS &&
            cuMemFreeAsync(block, nullptr) == CUDA_SUCCESS,
        "a pool can be left with memory");
    if (!one_at_a_time) to_all_threads();
    raise(SIGUSR1);
    say(within(std::chrono::seconds(60), [=] { return curb_sim_held(0) <= before; }),
        "a release gives back what the pool kept");
    std::printf("%llu\n", static_cast<unsigned long long>(arrived));
    return wrong == 0 ? 0 : 1;
}
