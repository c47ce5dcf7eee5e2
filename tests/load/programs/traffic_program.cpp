// Threads that allocate and free memory at random. Commands on stdin, one a line:
//   quiet  stops the threads; answers "quiet OPERATIONS WRONG"
//   work   goes on
//   empty  after quiet: frees everything; answers "empty"
//   fork   forks a child that lives for a moment: uses nothing, calls the driver, or becomes another program
//   end    ends, as does the end of the input
//
// Arguments: the numbers of threads, blocks and devices, a seed, the families of memory ("all", or several of
// "no-pools", "movable" and "green"), and the microseconds that a thread waits between two operations. "green": a green
// context makes the first context.
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <iostream>
#include <string>

#include "traffic.hpp"

namespace {

constexpr std::uint64_t kForEver = 1ULL << 60;

void fork_child(unsigned how) {
    const pid_t child = fork();
    if (child != 0) return;
    if (how % 3 == 0) {
        execl("/bin/sleep", "sleep", "0.2", static_cast<char *>(nullptr));
        _exit(1);
    }
    CUdeviceptr block = 0;
    if (how % 3 == 1) cuMemAlloc_v2(&block, load::kMiB);  // which a forked child may not
    usleep(200'000);
    _exit(0);
}

}  // namespace

int main(int argc, char **argv) {
    if (argc != 7) {
        std::cerr << "usage: " << argv[0] << " THREADS BLOCKS DEVICES SEED all|no-pools,movable,green PAUSE-US\n";
        return 2;
    }
    signal(SIGCHLD, SIG_IGN);
    const auto number = [&](int i) { return static_cast<unsigned>(std::strtoul(argv[i], nullptr, 10)); };
    const std::string families = argv[5];
    const auto has = [&](const char *word) { return families.find(word) != std::string::npos; };
    std::vector<load::Trait> without;
    // Only pools and code may exceed the cap; the size of code is known only once it is loaded.
    if (has("no-pools")) without = {load::Trait::stream_ordered, load::Trait::code};
    load::Traffic traffic({.threads = number(1),
                           .blocks = number(2),
                           .devices = number(3),
                           .seed = number(4),
                           .without = without,
                           .movable = has("movable"),
                           .by_green = has("green"),
                           .pause_us = number(6)});
    traffic.work(kForEver);
    std::cout << "working" << std::endl;
    unsigned forks = number(4);
    for (std::string line; std::getline(std::cin, line) && line != "end";) {
        if (line == "fork") {
            fork_child(forks++);
        } else if (line == "work") {
            traffic.work(kForEver);
        } else if (line == "quiet") {
            traffic.stop();
            traffic.synchronize();  // NVML does not show managed memory that has not come back yet
            std::cout << "quiet " << traffic.counts().operations() << " " << traffic.counts().wrong << std::endl;
        } else if (line == "empty") {
            traffic.give_everything_back();
            std::cout << "empty" << std::endl;
        }
    }
    traffic.stop();
    return traffic.counts().wrong == 0 ? 0 : 1;
}
