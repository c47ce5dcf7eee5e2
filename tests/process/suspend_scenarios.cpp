// A program that does as it is told, line by line on stdin, and answers each line on stdout: what is suspended and
// resumed in suspend_test.cpp.
#include <cstdio>
#include <iostream>
#include <sstream>

#include "memory.hpp"

using namespace scenario;

namespace {

constexpr std::uint64_t kPage = 4 * KiB, kApart = 16 * MiB;

struct Block {
    CUdeviceptr start;
    std::uint64_t bytes;
};

// A page of every 16 MiB, written with where it is.
void mark(const Block &block) {
    for (std::uint64_t at = 0; at + kPage <= block.bytes; at += kApart)
        MUST(cuMemsetD32_v2(block.start + at, static_cast<unsigned>(at >> 20) + 7, kPage / 4));
}
bool is_marked(const Block &block) {
    unsigned words[kPage / 4];
    for (std::uint64_t at = 0; at + kPage <= block.bytes; at += kApart) {
        MUST(cuMemcpyDtoH_v2(words, block.start + at, sizeof words));
        for (const unsigned word : words)
            if (word != static_cast<unsigned>(at >> 20) + 7) return false;
    }
    return true;
}

// Keeps the call in progress that submitted it, until the next line.
void wait_for_a_line(void *) {
    std::string line;
    std::getline(std::cin, line);
}

}  // namespace

SCENARIO_NAMED(does_as_it_is_told) {
    start();
    std::vector<Block> blocks;
    const auto say = [](const char *text) {
        std::printf("%s\n", text);
        std::fflush(stdout);
    };
    say("ready");
    for (std::string line; std::getline(std::cin, line);) {
        std::istringstream words(line);
        std::string what;
        std::uint64_t mib = 0;
        int device = 0;
        words >> what >> mib >> device;
        CUdeviceptr pointer = 0;
        if (what == "hold") {
            CUcontext context = nullptr;
            MUST(cuDevicePrimaryCtxRetain(&context, device));
            MUST(cuCtxSetCurrent(context));
            if (cuMemAlloc_v2(&pointer, mib * MiB) != CUDA_SUCCESS) {
                say("refused");
                continue;
            }
            blocks.push_back({pointer, mib * MiB});
            mark(blocks.back());
            say("held");
        } else if (what == "give") {
            MUST(cuMemFree_v2(blocks.back().start));
            blocks.pop_back();
            say("given");
        } else if (what == "managed") {
            MUST(cuMemAllocManaged(&pointer, mib * MiB, CU_MEM_ATTACH_GLOBAL));
            say("managed");
        } else if (what == "check") {
            say(std::all_of(blocks.begin(), blocks.end(), is_marked) ? "right" : "wrong");
        } else if (what == "submit") {
            say("submitting");
            MUST(cuLaunchHostFunc(nullptr, wait_for_a_line, nullptr));
            say("ended");
        }
    }
}
