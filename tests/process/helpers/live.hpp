// Helpers of the scenarios about a running process: edits of its policy file, and memory that only a release brings
// back.
#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>

#include "memory.hpp"

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
inline void edit(const std::string &text) { write_by_rename(policy_file(), text); }

// True if curb's log, whose path is in LOG, contains `text`.
inline bool log_says(const std::string &text) {
    std::ifstream log(std::getenv("LOG"));
    return std::string(std::istreambuf_iterator<char>(log), {}).find(text) != std::string::npos;
}

// Leaves 256 MiB in the default pool, by a free that the host has not seen complete.
inline void leave_memory_in_the_pool() {
    const CUdeviceptr block = take_from_keeping_pool(256 * MiB);
    EXPECT_EQ(curb_sim_held(0), kContext + 256 * MiB);
    MUST(cuMemFreeAsync(block, nullptr));
}
inline bool pool_came_back() {
    return within(std::chrono::seconds(5), [] { return curb_sim_held(0) == kContext; });
}

}  // namespace scenario
