// What the scenarios about a running process share: its policy file, edited, and memory that only a release brings
// back.
#pragma once

#include <filesystem>
#include <fstream>

#include "scenario.hpp"
#include "sim.h"

namespace scenario {

namespace fs = std::filesystem;

inline const char *policy_file() { return std::getenv("CURB_POLICY"); }
inline std::string policy_with_cap(const char *cap) {
    return std::string(R"({ "version": 1, "gpu": { "*": { "cap": ")") + cap + R"(" } } })";
}
inline void write_in_place(const fs::path &file, const std::string &text) {
    std::ofstream(file, std::ios::trunc) << text;
}
inline void write_by_rename(const fs::path &file, const std::string &text) {
    const fs::path fresh = file.string() + ".new";
    write_in_place(fresh, text);
    fs::rename(fresh, file);
}

// Puts 256 MiB into the default pool and frees them there: memory that only a trim brings back.
inline void leave_memory_in_the_pool() {
    CUmemoryPool pool = nullptr;
    std::uint64_t threshold = ~0ULL;
    CUdeviceptr block = 0;
    MUST(cuDeviceGetMemPool(&pool, 0));
    MUST(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
    MUST(cuMemAllocAsync(&block, 256 * MiB, nullptr));
    EXPECT_EQ(curb_sim_held(0), kContext + 256 * MiB);
    MUST(cuMemFreeAsync(block, nullptr));
}
inline bool pool_came_back() {
    return within(std::chrono::seconds(5), [] { return curb_sim_held(0) == kContext; });
}

}  // namespace scenario
