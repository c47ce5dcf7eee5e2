// Memory whose every word the program knows, while curb moves it out of the GPU and back. Commands on stdin, one a
// line:
//   fail CALL  the CALL-th call of the driver from now on by curb's own threads fails; 0: none. Answers "resting"
//   kill CALL  the same, but that call ends the process
//   check      checks every word, and gives other words to one block; answers "right CALLS FAILED" or "wrong": how many
//              calls there were of curb's threads, and which one failed ("nothing")
//   fork       forks a child that uses the GPU's addresses and ends; answers "forked"
//
// Arguments: a seed; the families of memory: "all", or "few" for those that curb can move; how many blocks of 20 MiB
// more it has, of plain memory.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "families.hpp"
#include "sim.h"

namespace {

using families::Block;
using families::kKiB, families::kMiB;
using families::Trait;

void must(CUresult result, const char *what) {
    if (result == CUDA_SUCCESS) return;
    std::cerr << what << ": error " << result << std::endl;
    std::_Exit(1);
}

class Memory {
  public:
    Memory(unsigned seed, bool all, int more) : random_(seed) {
        CUcontext context = nullptr;
        must(cuInit(0), "cuInit");
        must(cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
        must(cuCtxSetCurrent(context), "cuCtxSetCurrent");
        place_ = families::make_place(calls_, 0);
        for (const families::Family &family : families::families())
            if (all ? may_nap(family) : moves(family)) add(family);
        const auto plain = std::find_if(families::families().begin(), families::families().end(),
                                        [](const families::Family &one) { return one.name == std::string("plain"); });
        for (; more > 0; --more) add(*plain, 20 * kMiB);
    }

    bool check_and_change() {
        for (const Known &one : known_) {
            must(cuMemcpyDtoH_v2(found_.data(), one.block.pointer, one.bytes), "cuMemcpyDtoH");
            write(one);
            if (std::memcmp(found_.data(), words_.data(), one.bytes) != 0) {
                std::cerr << one.block.family->name << " is not as it was" << std::endl;
                return false;
            }
        }
        const std::size_t which = random_() % known_.size();
        if (random_() % 4 == 0) {  // other memory in its place
            const families::Family &family = *known_[which].block.family;
            const std::size_t bytes = known_[which].block.bytes;
            must(family.give({calls_, place_, 0}, known_[which].block), "give");
            known_.erase(known_.begin() + static_cast<std::ptrdiff_t>(which));
            if (bytes == 20 * kMiB)
                add(family, bytes);
            else
                add(family);
        } else {
            fill(known_[which]);
        }
        return true;
    }

  private:
    struct Known {
        Block block;
        std::size_t bytes = 0;
        unsigned seed = 0;
    };

    // A process in which a capture is open takes no nap.
    static bool may_nap(const families::Family &family) {
        return family.memory.trait != Trait::open_capture && family.memory.trait != Trait::whole_context;
    }
    static bool moves(const families::Family &family) {
        const std::string name = family.name;
        return name == "plain" || name == "pitch" || name == "mapping";
    }

    void add(const families::Family &family) { add(family, family.nth(0, 2 * kMiB + random_() % 4 * kMiB)); }
    void add(const families::Family &family, std::size_t bytes) {
        Known one{.block = {.family = &family, .bytes = bytes}};
        must(family.take({calls_, place_, static_cast<unsigned>(random_())}, one.block), family.name);
        if (one.block.pointer == 0) return;
        one.bytes = one.block.bytes & ~std::size_t{3};
        const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
        if (cuMemcpyDtoH_v2(&one.seed, one.block.pointer, sizeof one.seed) != CUDA_SUCCESS &&
            cuMemSetAccess(one.block.pointer, one.block.bytes, &access, 1) != CUDA_SUCCESS)
            return;
        fill(one);
        known_.push_back(one);
    }
    void fill(Known &one) {
        one.seed = static_cast<unsigned>(random_());
        write(one);
        must(cuMemcpyHtoD_v2(one.block.pointer, words_.data(), one.bytes), "cuMemcpyHtoD");
    }
    // Writes the words that a block has: every second 128 KiB are zeros.
    void write(const Known &one) {
        constexpr std::size_t kRun = 128 * kKiB / sizeof(unsigned);
        words_.resize(std::max(words_.size(), one.bytes / sizeof(unsigned)));
        found_.resize(words_.size());
        for (std::size_t i = 0; i < one.bytes / sizeof(unsigned); ++i)
            words_[i] = (i / kRun + one.seed) % 2 != 0 ? 0 : one.seed + static_cast<unsigned>(i) * 2'654'435'761U;
    }

    families::Calls calls_;
    families::Place place_;
    std::minstd_rand random_;
    std::vector<Known> known_;
    std::vector<unsigned> words_, found_;
};

void fork_child() {
    const pid_t child = fork();
    if (child == 0) {
        CUdeviceptr block = 0;
        cuMemAlloc_v2(&block, kMiB);  // which a forked child may not
        _exit(0);
    }
    waitpid(child, nullptr, 0);
}

}  // namespace

int main(int argc, char **argv) {
    if (argc < 3 || argc > 4) {
        std::cerr << "usage: " << argv[0] << " SEED all|few [BLOCKS]\n";
        return 2;
    }
    Memory memory(static_cast<unsigned>(std::strtoul(argv[1], nullptr, 10)), std::string(argv[2]) == "all",
                  argc == 4 ? std::atoi(argv[3]) : 0);
    std::cout << "ready" << std::endl;
    for (std::string line; std::getline(std::cin, line);) {
        std::istringstream words(line);
        std::string command;
        std::uint64_t call = 0, calls = 0;
        words >> command >> call;
        if (command == "check") {
            const bool right = memory.check_and_change();
            const char *failed = curb_sim_failed(&calls);
            std::cout << (right ? "right " : "wrong ") << calls << ' ' << (failed ? failed : "nothing") << std::endl;
            if (!right) return 1;
        } else if (command == "fork") {
            fork_child();
            std::cout << "forked" << std::endl;
        } else {
            curb_sim_fail(call, command == "kill" ? CURB_SIM_KILL : CUDA_ERROR_UNKNOWN, 1);
            std::cout << "resting" << std::endl;
        }
    }
    return 0;
}
