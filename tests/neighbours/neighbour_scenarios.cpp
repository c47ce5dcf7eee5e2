// Hosts of neighbours_test.py: programs that share their process with other preloads, allocators and libraries.
#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <list>

#include "../process/helpers/memory.hpp"

using namespace scenario;
using namespace std::chrono_literals;

namespace {

// Fills blocks of the host's own memory, and checks each before it frees it.
class HostMemory {
  public:
    void take(std::size_t bytes, char pattern) {
        auto *block = static_cast<char *>(std::malloc(bytes));
        std::memset(block, pattern, bytes);
        const std::size_t more = bytes * 2;
        block = static_cast<char *>(std::realloc(block, more));
        std::memset(block + bytes, pattern, bytes);
        blocks_.push_back({block, more, pattern});
        strings_.push_back(std::string(bytes, pattern));
    }
    void give() {
        const Block block = blocks_.front();
        for (std::size_t i = 0; i < block.bytes; i += 61) EXPECT_EQ(block.data[i], block.pattern);
        EXPECT(strings_.front().find_first_not_of(block.pattern) == std::string::npos);
        std::free(block.data);
        blocks_.pop_front();
        strings_.pop_front();
    }
    [[nodiscard]] std::size_t count() const { return blocks_.size(); }

  private:
    struct Block {
        char *data;
        std::size_t bytes;
        char pattern;
    };
    std::list<Block> blocks_;
    std::list<std::string> strings_;
};

void work(unsigned seed) {
    HostMemory host;
    std::vector<CUdeviceptr> blocks;
    unsigned random = seed * 2654435761U;
    for (int i = 0; i < 400; ++i) {
        random = random * 1664525U + 1013904223U;
        host.take(1 + (random >> 8) % 9000, static_cast<char>('a' + i % 26));
        if (host.count() > 16) host.give();
        CUdeviceptr block = 0;
        const CUresult result = cuMemAlloc_v2(&block, 1 + (random >> 8) % (8 * MiB));
        if (result == CUDA_SUCCESS) blocks.push_back(block);
        if (result != CUDA_SUCCESS) EXPECT_EQ(result, CUDA_ERROR_OUT_OF_MEMORY);
        while (blocks.size() > 6 || (result != CUDA_SUCCESS && !blocks.empty())) {
            MUST(cuMemFree_v2(blocks.back()));
            blocks.pop_back();
        }
    }
    while (host.count() > 0) host.give();
    for (const CUdeviceptr block : blocks) MUST(cuMemFree_v2(block));
}

// A forked child must not wait for a lock that a thread of the parent held.
void child(int how) {
    HostMemory host;
    for (int i = 0; i < 50; ++i) host.take(100, 'c');
    while (host.count() > 0) host.give();
    if (how % 2 == 0) execl("/bin/true", "true", static_cast<char *>(nullptr));
    _exit(failures == 0 ? 0 : 1);
}

void handle(int) {}

void works_and_ends_with_equal_books() {
    const char *neighbour = std::getenv("NEIGHBOUR_LIBRARY");
    EXPECT(!neighbour || dlopen(neighbour, RTLD_LAZY | RTLD_NOLOAD) != nullptr);
    // Neighbours interpose these functions, too.
    EXPECT(dlsym(RTLD_DEFAULT, "malloc") != nullptr);
    EXPECT(signal(SIGUSR2, handle) == SIG_DFL);
    EXPECT(signal(SIGUSR2, SIG_DFL) == handle);
    struct sigaction action {};
    EXPECT_EQ(sigaction(SIGUSR2, nullptr, &action), 0);
    EXPECT(action.sa_handler == SIG_DFL);
    start();
    {
        const Threads threads(4, [](unsigned number) { work(number + 1); });
        for (int i = 0; i < 6; ++i) {
            kill(getpid(), SIGUSR1);
            EXPECT_EQ(status_of_child([=] { child(i); }), 0);
        }
    }
    EXPECT_EQ(curb_sim_held(0), kContext);
    EXPECT(within(20s, [] { return shown_held() == curb_sim_held(0); }));
    // It ends with live memory, while a release may be under way.
    take(20 * MiB);
    kill(getpid(), SIGUSR1);
}

}  // namespace

SCENARIO_NAMED(works_beside_it) { works_and_ends_with_equal_books(); }

// The same without curb, beside the neighbour alone.
SCENARIO_NAMED(works_without_curb) {
    signal(SIGUSR1, SIG_IGN);
    works_and_ends_with_equal_books();
}

// Ends as soon as it can, while a thread of curb's may still be at work.
SCENARIO_NAMED(starts_and_ends) { start(); }

SCENARIO_NAMED(time_is_another) {
    EXPECT(time(nullptr) < 1'700'000'000);  // in 2023
    works_and_ends_with_equal_books();
}

SCENARIO_NAMED(nothing_is_synchronised) {
    const int fd = open("here", O_WRONLY | O_CREAT | O_SYNC | O_CLOEXEC, 0600);
    EXPECT(fd >= 0 && (fcntl(fd, F_GETFL) & O_SYNC) == 0);
    close(fd);
    works_and_ends_with_equal_books();
}

namespace {

// Allocates 50 times by the linked symbol and 50 times by the function that dlsym finds. Each call reaches the driver
// once.
template <class Look>
void allocate_a_hundred_times(Look look) {
    start();
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY);
    using Allocate = CUresult(CUdeviceptr *, std::size_t);
    using Free = CUresult(CUdeviceptr);
    auto *allocate = reinterpret_cast<Allocate *>(dlsym(driver, "cuMemAlloc_v2"));
    auto *free_again = reinterpret_cast<Free *>(dlsym(driver, "cuMemFree_v2"));
    for (int i = 0; i < 50; ++i) {
        const CUdeviceptr block = take(3 * MiB);
        look();
        CUdeviceptr other = 0;
        MUST(allocate(&other, 5 * MiB));
        look();
        MUST(free_again(block));
        MUST(cuMemFree_v2(other));
    }
    EXPECT_EQ(curb_sim_held(0), kContext);
    EXPECT_EQ(curb_sim_calls("cuMemAlloc_v2"), 100U);
}

}  // namespace

SCENARIO_NAMED(allocates_a_hundred_times) {
    allocate_a_hundred_times([] { EXPECT_EQ(curb_sim_held(0), shown_held()); });
}
SCENARIO_NAMED(allocates_past_us) {
    allocate_a_hundred_times([] {});
}

// The host opens a library with RTLD_GLOBAL that defines the names within libcurb.so.
SCENARIO_NAMED(other_definitions_are_everywhere) {
    const char *path = std::getenv("NEIGHBOUR_LIBRARY");
    EXPECT(dlsym(RTLD_DEFAULT, "neighbour_foreign_definitions") == nullptr);
    EXPECT(path && dlopen(path, RTLD_NOW | RTLD_GLOBAL) != nullptr);
    EXPECT(dlsym(RTLD_DEFAULT, "neighbour_foreign_definitions") != nullptr);
    works_and_ends_with_equal_books();
}

namespace {

// Opens the plugin, which allocates 64 MiB.
bool plugin_allocates(int flags) {
    const char *path = std::getenv("NEIGHBOUR_LIBRARY");
    start();
    void *plugin = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL | flags) : nullptr;
    const auto allocate = plugin ? reinterpret_cast<int (*)()>(dlsym(plugin, "plugin_allocates")) : nullptr;
    EXPECT(allocate && allocate() == 0);
    EXPECT_EQ(curb_sim_held(0), kContext + 64 * MiB);
    return allocate != nullptr;
}

}  // namespace

// A plugin that is opened with RTLD_DEEPBIND bypasses curb. NVML's figure for the process includes its memory, so
// curb's books do too.
SCENARIO_NAMED(a_plugin_binds_past_us) {
    if (!plugin_allocates(RTLD_DEEPBIND)) return;
    const CUdeviceptr block = take(100 * MiB);
    EXPECT(within(20s, [] { return shown_held(64 * MiB) == curb_sim_held(0); }));
    fill([] {
        CUdeviceptr more = 0;
        return cuMemAlloc_v2(&more, 32 * MiB);
    });
    MUST(cuMemFree_v2(block));
}

// A plugin that is linked with -Bsymbolic and opened without RTLD_DEEPBIND does not bypass curb.
SCENARIO_NAMED(a_plugin_is_bound_to_itself) {
    plugin_allocates(0);
    EXPECT_EQ(shown_held(), kContext + 64 * MiB);
}
