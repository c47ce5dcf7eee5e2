// One of the crowd: takes and gives memory back at random on both devices until it is told otherwise.
//
// Arguments: a seed. On its standard input: "quiet" (stops working, answers "quiet"), "work" (goes on), "fork" (a child
// that does nothing but live for a moment, or uses CUDA, or becomes another program), "end".
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "cuda_abi.h"

namespace {

constexpr std::uint64_t kMiB = 1ULL << 20;
constexpr int kDevices = 2;

struct Block {
    int device = 0;
    CUdeviceptr pointer = 0;
    bool from_pool = false;
};

class Worker {
  public:
    explicit Worker(unsigned seed) : random_(seed) {
        cuInit(0);
        for (int device = 0; device < kDevices; ++device)
            if (cuDevicePrimaryCtxRetain(&contexts_[device], device) != CUDA_SUCCESS) contexts_[device] = nullptr;
    }

    void work() {
        const int device = static_cast<int>(random_() % kDevices);
        if (!contexts_[device]) return;
        cuCtxSetCurrent(contexts_[device]);
        if (blocks_.size() > 40 || (!blocks_.empty() && random_() % 2 == 0)) {
            give_back();
        } else {
            take(device);
        }
    }

  private:
    void take(int device) {
        Block block{device, 0, random_() % 3 == 0};
        const std::uint64_t bytes = 1 + random_() % (random_() % 8 == 0 ? 900 * kMiB : 24 * kMiB);
        const CUresult result =
            block.from_pool ? cuMemAllocAsync(&block.pointer, bytes, nullptr) : cuMemAlloc_v2(&block.pointer, bytes);
        if (result == CUDA_SUCCESS) blocks_.push_back(block);
    }
    void give_back() {
        const std::size_t which = random_() % blocks_.size();
        const Block block = blocks_[which];
        blocks_.erase(blocks_.begin() + static_cast<std::ptrdiff_t>(which));
        cuCtxSetCurrent(contexts_[block.device]);
        if (block.from_pool)
            cuMemFreeAsync(block.pointer, nullptr);
        else
            cuMemFree_v2(block.pointer);
    }

    std::mt19937 random_;
    CUcontext contexts_[kDevices] = {};
    std::vector<Block> blocks_;
};

bool told() {
    pollfd input{0, POLLIN, 0};
    return poll(&input, 1, 0) > 0;
}

void fork_child(unsigned how) {
    if (fork() != 0) return;
    if (how % 3 == 0) {
        execl("/bin/sleep", "sleep", "0.2", static_cast<char *>(nullptr));
        _exit(1);
    }
    CUdeviceptr block = 0;
    if (how % 3 == 1) cuMemAlloc_v2(&block, kMiB);  // which a forked child may not
    usleep(200'000);
    _exit(0);
}

}  // namespace

int main(int argc, char **argv) {
    const auto seed = static_cast<unsigned>(argc > 1 ? std::atoi(argv[1]) : 1);
    signal(SIGCHLD, SIG_IGN);
    Worker worker(seed);
    std::cout << "working" << std::endl;
    unsigned forks = seed;
    for (std::string line;;) {
        while (!told()) {
            worker.work();
            usleep(500);
        }
        for (;;) {
            if (!std::getline(std::cin, line) || line == "end") return 0;
            if (line == "work") break;
            if (line == "fork") {
                fork_child(forks++);
                break;
            }
            std::cout << line << std::endl;
        }
    }
}
