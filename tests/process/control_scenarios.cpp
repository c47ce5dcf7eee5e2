// A program that control_test.cpp asks from outside. What it does is told line by line on its standard input; it
// answers each line with one of its own.

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <functional>
#include <iostream>
#include <map>
#include <string>

#include "scenario.hpp"
#include "sim.h"

using namespace scenario;

namespace {

std::string leave_memory_in_the_pool() {
    CUmemoryPool pool = nullptr;
    std::uint64_t threshold = ~0ULL;
    CUdeviceptr block = 0;
    MUST(cuDeviceGetMemPool(&pool, 0));
    MUST(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
    MUST(cuMemAllocAsync(&block, 256 * MiB, nullptr));
    MUST(cuMemFreeAsync(block, nullptr));
    return "ok";
}

// As many threads as there may be cores, each taking and giving memory back without a pause.
std::string compute() {
    for (int i = 0; i < 4; ++i) {
        std::thread([] {
            CUcontext context = nullptr;
            MUST(cuDevicePrimaryCtxRetain(&context, 0));
            MUST(cuCtxSetCurrent(context));
            for (;;) {
                CUdeviceptr block = 0;
                if (cuMemAlloc_v2(&block, 4 * MiB) == CUDA_SUCCESS) cuMemFree_v2(block);
            }
        }).detach();
    }
    return "ok";
}

// What daemons do; then the program opens its own under the same numbers: sockets with something to read and files.
int theirs[2] = {-1, -1};
std::vector<int> files;
std::string close_everything() {
    close_range(3, ~0U, 0);
    for (int i = 0; i < 20; ++i) {
        int pair[2];
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0 || write(pair[1], "theirs", 6) != 6) return "no sockets";
        if (theirs[0] < 0) std::copy(pair, pair + 2, theirs);
        files.push_back(pair[0]);
    }
    return "ok";
}
// Whether all of that is untouched.
std::string look_at_them() {
    for (const int file : files) {
        char text[8] = {};
        if (recv(file, text, sizeof text, MSG_DONTWAIT) != 6 || std::strcmp(text, "theirs") != 0) return "disturbed";
    }
    return "untouched";
}

std::string fork_child_that_ends() {
    const pid_t child = fork();
    if (child == 0) std::exit(0);
    int status = 0;
    waitpid(child, &status, 0);
    return "ok";
}

// Keeps whatever it inherits; ended by its parent's test.
std::string fork_child_that_stays() {
    int ready[2];
    if (pipe(ready) != 0) return "no pipe";
    const pid_t child = fork();
    if (child == 0) {
        for (const int end : {0, 1, 2, ready[0], ready[1]}) close(end);
        for (;;) pause();
    }
    close(ready[1]);
    char none = 0;
    if (read(ready[0], &none, 1) != 0) return "no child";
    close(ready[0]);
    return std::to_string(child);
}

std::string become_another() {
    execl("/proc/self/exe", "scenarios", "does_what_it_is_told", nullptr);
    return "not executed";
}
std::string become_one_without_cuda() {
    execl("/bin/sh", "sh", "-c", "echo ok; read end", nullptr);
    return "not executed";
}

}  // namespace

SCENARIO_NAMED(does_what_it_is_told) {
    start();
    const std::map<std::string, std::function<std::string()>> commands = {
        {"pool", leave_memory_in_the_pool},
        {"held", [] { return std::to_string(curb_sim_held(0)); }},
        {"compute", compute},
        {"close", close_everything},
        {"look", look_at_them},
        {"fork and end", fork_child_that_ends},
        {"fork and stay", fork_child_that_stays},
        {"exec", become_another},
        {"exec sh", become_one_without_cuda},
        {"threads", [] { return std::to_string(entries("/proc/self/task")); }},
        {"descriptors", [] { return std::to_string(entries("/proc/self/fd")); }},
        {"kill",
         []() -> std::string {
             raise(SIGKILL);
             return "";
         }},
        {"_exit", []() -> std::string { _exit(0); }},
    };
    std::cout << "ready" << std::endl;
    for (std::string line; std::getline(std::cin, line);) std::cout << commands.at(line)() << std::endl;
    // End of input: the normal end.
}
