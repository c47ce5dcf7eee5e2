// The files that a fuzzer begins with, read by tests. Files that a fuzzer found stand in folders named `found`.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <sstream>
#include <string>
#include <vector>

namespace curb::fuzz {

struct Input {
    std::string name;
    std::string text;
};

// All below the folders, in the order of their names.
inline std::vector<Input> corpus(std::initializer_list<std::filesystem::path> folders) {
    std::vector<Input> out;
    for (const auto &folder : folders) {
        for (const auto &entry : std::filesystem::recursive_directory_iterator(folder)) {
            if (!entry.is_regular_file()) continue;
            std::ostringstream text;
            text << std::ifstream(entry.path(), std::ios::binary).rdbuf();
            out.push_back({entry.path().string(), std::move(text).str()});
        }
    }
    std::sort(out.begin(), out.end(), [](const Input &a, const Input &b) { return a.name < b.name; });
    return out;
}

}  // namespace curb::fuzz
