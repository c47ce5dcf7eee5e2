// One cell of a matrix: a family of memory (tests/families), and an event in the life of its context, of the process or
// of its cap. In each of several rounds the program allocates and the event happens. Then curb's books must be the
// driver's by kind, the cap must hold, releases must free all unused memory, and the round must end as the first did.
//
// Arguments: the policy's file, which the program rewrites, its cap in MiB, the family and the event. Without arguments
// it prints "FAMILY\tEVENT" for each cell.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include "books.hpp"
#include "families.hpp"
#include "sim.h"

namespace {

namespace control = curb::control;
namespace policy = curb::policy;
using namespace load;
using namespace families;

int wrong = 0;
std::string where;
Calls calls;
void expect(bool right, const std::string &what) {
    if (right) return;
    std::fprintf(stderr, "%s: %s\n", where.c_str(), what.c_str());
    ++wrong;
}
void done(CUresult result, const char *what) {
    expect(result == CUDA_SUCCESS, std::string(what) + ": error " + std::to_string(result));
}
void expect_equal(const char *when) {
    const std::string left = differences_that_stay(std::chrono::seconds(3));
    expect(left.empty(), std::string(when) + ": " + left);
}

constexpr std::uint64_t kBlock = 24 * kMiB, kProbe = 128 * kMiB;
constexpr int kBlocks = 3, kRounds = 3;
constexpr CUresult kIllegalAddress = CUDA_ERROR_ILLEGAL_ADDRESS;

struct Cell {
    std::string file;
    std::uint64_t cap = 0;
    Place place{};
    bool ended = false, primary_ended = false;  // the context in which the blocks were taken
};

void begin_use(Cell &cell) {
    done(cuCtxSetCurrent(cell.place.context), "cuCtxSetCurrent");
    for (CUstream &stream : cell.place.streams)
        if (&stream != cell.place.streams) done(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
}
void begin_primary(Cell &cell) {
    done(cuDevicePrimaryCtxRetain(&cell.place.context, 0), "cuDevicePrimaryCtxRetain");
    begin_use(cell);
}
void begin_own(Cell &cell) {
    done(cuCtxCreate_v2(&cell.place.context, 0, 0), "cuCtxCreate");
    begin_use(cell);
}

void destroy(Cell &cell) {
    done(cuCtxDestroy_v2(cell.place.context), "cuCtxDestroy");
    cell.ended = true;
}
void reset(Cell &cell) {
    done(cuDevicePrimaryCtxReset_v2(0), "cuDevicePrimaryCtxReset");
    cell.ended = cell.primary_ended = true;
}
void release_last(Cell &cell) {
    done(cuDevicePrimaryCtxRelease_v2(0), "cuDevicePrimaryCtxRelease");
    cell.ended = true;
}
void attach_and_detach(Cell &cell) {
    CUcontext same = nullptr;
    done(cuCtxAttach(&same, 0), "cuCtxAttach");
    expect(same == cell.place.context, "cuCtxAttach: another context");
    done(cuCtxDetach(same), "cuCtxDetach");
}
void fork_a_child(Cell &cell) {
    const pid_t child = fork();
    if (child == 0) {
        CUdeviceptr block = 0;
        const bool refused = cuMemAlloc_v2(&block, kBlock) != CUDA_SUCCESS;
        cuCtxDestroy_v2(cell.place.context);
        _exit(refused ? 0 : 1);
    }
    int status = 0;
    expect(waitpid(child, &status, 0) == child && status == 0, "a forked child could allocate, or died");
}

void refused_above(const char *what) {
    CUdeviceptr block = 0;
    expect(cuMemAlloc_v2(&block, kProbe) == CUDA_ERROR_OUT_OF_MEMORY, what);
}
void lower_live_cap(Cell &) {
    control::CapRequest lower{.cap = policy::Size{policy::Size::Unit::bytes, curb_sim_held(0)}};
    expect(std::holds_alternative<control::CapReport>(control::ask(getpid(), lower, kPatience)), "no live cap");
    refused_above("memory was granted above a live cap");
    expect_equal("under a live cap");
    control::ask(getpid(), control::CapRequest(), kPatience);
}
void write_policy(const Cell &cell, std::uint64_t cap) {
    std::ifstream before(cell.file + ".in");
    std::stringstream text;
    text << before.rdbuf();
    std::string now = text.str();
    now.replace(now.find("CAP"), 3, std::to_string(cap) + "B");
    std::ofstream(cell.file + ".new") << now;
    expect(std::rename((cell.file + ".new").c_str(), cell.file.c_str()) == 0, "the policy cannot be replaced");
    const auto in_force = [=] {
        const control::Reply reply = control::ask(getpid(), control::StatusRequest(), kPatience);
        const auto *status = std::get_if<control::Status>(&reply);
        return status && status->gpus.at(0).cap == cap;
    };
    expect(within(kPatience, in_force), "the edited policy is not in force");
}
void edit_policy(Cell &cell) {
    write_policy(cell, curb_sim_held(0));
    refused_above("memory was granted above an edited policy's cap");
    expect_equal("under an edited policy");
    write_policy(cell, cell.cap);
}
// Only work on the device fails like this, so the program launches a kernel first.
void fail_for_good(Cell &cell) {
    CUmodule module = nullptr;
    CUfunction kernel = nullptr;
    done(cuModuleLoadData(&module, "// curb-sim-module code=2MiB\n// kernel small\n"), "cuModuleLoadData");
    done(cuModuleGetFunction(&kernel, module, "small"), "cuModuleGetFunction");
    done(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr), "cuLaunchKernel");
    curb_sim_break(kIllegalAddress);
    CUdeviceptr block = 0;
    expect(cuMemAlloc_v2(&block, kBlock) == kIllegalAddress, "memory was granted by a device that has failed");
    reset(cell);
    expect_equal("after the reset of a device that has failed");
    curb_sim_break(CUDA_SUCCESS);  // for the next rounds: of a real device only another process could
}

struct Event {
    const char *name;
    void (*begin)(Cell &);
    void (*happens)(Cell &);
};
constexpr Event kEvents[] = {
    {"context destroyed", begin_own, destroy},     {"primary reset", begin_primary, reset},
    {"last release", begin_primary, release_last}, {"attached and detached", begin_own, attach_and_detach},
    {"fork", begin_primary, fork_a_child},         {"live cap lowered", begin_primary, lower_live_cap},
    {"policy edited", begin_primary, edit_policy}, {"error that stays", begin_primary, fail_for_good},
};

bool is_alive(const Cell &cell, const Family &family) {
    switch (family.memory.ends_with) {
        case EndsWith::its_context: return !cell.ended;
        case EndsWith::primary_context: return !cell.primary_ended;
        case EndsWith::nothing: break;
    }
    return true;
}

// Allocates blocks until the cap refuses one, then frees them.
void meet_the_cap(const Cell &cell) {
    std::vector<CUdeviceptr> blocks;
    CUdeviceptr block = 0;
    CUresult result = CUDA_SUCCESS;
    while (blocks.size() < 1000 && (result = cuMemAlloc_v2(&block, kProbe)) == CUDA_SUCCESS) blocks.push_back(block);
    expect(result == CUDA_ERROR_OUT_OF_MEMORY, "the cap is not met, but error " + std::to_string(result));
    // curb keeps some memory free for the driver's code.
    expect(curb_sim_held(0) + 3 * kProbe > cell.cap, "refused far below the cap, with " + of_driver());
    expect(curb_sim_high(0) <= cell.cap, "above the cap: " + std::to_string(curb_sim_high(0)));
    for (const CUdeviceptr one : blocks) done(cuMemFree_v2(one), "cuMemFree");
}

// Frees everything of the round. A release must then empty the default pool and curb's cache.
void leave(Cell &cell, const Event &event, std::vector<Block> &blocks) {
    for (unsigned i = 0; i < blocks.size(); ++i)
        if (is_alive(cell, *blocks[i].family)) done(blocks[i].family->give({calls, cell.place, i}, blocks[i]), "free");
    done(cuCtxSynchronize(), "cuCtxSynchronize");
    CUdeviceptr block = 0;
    done(cuMemAllocAsync(&block, kBlock, nullptr), "cuMemAllocAsync");
    done(cuMemFreeAsync(block, nullptr), "cuMemFreeAsync");
    expect(release(), "a release leaves kept blocks");
    expect(curb_sim_held_for(0, "pools") == 0, "a release leaves unused memory of pools");
    expect(curb_sim_held_for(0, "plain") == 0, "a release leaves plain memory");
    expect_equal("with everything free");
    if (event.begin == begin_own)
        done(cuCtxDestroy_v2(cell.place.context), "cuCtxDestroy");
    else
        done(cuDevicePrimaryCtxReset_v2(0), "cuDevicePrimaryCtxReset");
    expect_equal("at the end of a round");
}

std::string round(Cell &cell, const Family &family, const Event &event) {
    cell.ended = cell.primary_ended = false;
    event.begin(cell);
    std::vector<Block> blocks;
    for (unsigned i = 0; i < kBlocks; ++i) {
        Block block;
        block.family = &family;
        block.bytes = family.nth(i, kBlock);
        done(family.take({calls, cell.place, i}, block), "allocation");
        blocks.push_back(block);
    }
    expect_equal("with the memory");
    event.happens(cell);
    expect_equal("after the event");
    if (cell.ended) event.begin(cell);
    meet_the_cap(cell);
    expect_equal("after the cap was met");
    leave(cell, event, blocks);
    return of_driver();
}

int list() {
    for (const Family &family : families::families())
        for (const Event &event : kEvents)
            std::printf("%s\t%s\t%s\n", family.name, event.name,
                        family.memory.trait == Trait::code ? "code" : "memory");
    return 0;
}

}  // namespace

int main(int argc, char **argv) {
    if (argc == 1) return list();
    const Family *family = argc == 5 ? find(argv[3]) : nullptr;
    const Event *event = nullptr;
    for (const Event &one : kEvents)
        if (argc == 5 && std::strcmp(one.name, argv[4]) == 0) event = &one;
    if (!family || !event) {
        std::fprintf(stderr, "usage: %s [POLICY CAP-MIB FAMILY EVENT]\n", argv[0]);
        return 2;
    }
    Cell cell{.file = argv[1], .cap = std::strtoull(argv[2], nullptr, 10) * kMiB};
    done(cuInit(0), "cuInit");
    done(cuDeviceGetDefaultMemPool(&cell.place.pools[0], 0), "cuDeviceGetDefaultMemPool");
    cell.place.pools[1] = cell.place.pools[2] = cell.place.pools[0];
    std::string first;
    for (int number = 1; number <= kRounds && wrong == 0; ++number) {
        where = "round " + std::to_string(number);
        const std::string end = round(cell, *family, *event);
        if (first.empty()) first = end;
        expect(end == first, "it ends with " + end + "the first with " + first);
    }
    return wrong == 0 ? 0 : 1;
}
