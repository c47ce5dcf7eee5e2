// Checks the corpus of a fuzzer: `broken` returns the check of any text that a file fails, or "". Files that a fuzzer
// found are in folders named `found`.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <sstream>
#include <string>
#include <vector>

#include "catch.hpp"
#include "matrix.hpp"

namespace curb::fuzz {

struct Input {
    std::string name;
    std::string text;
};

// Returns all files below the folders, in the order of their names.
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

template <class Broken>
void check_all(const std::vector<Input> &files, std::size_t least, Broken broken) {
    REQUIRE(files.size() >= least);
    for (const auto &[name, text] : files) {
        INFO(name);
        CHECK(broken(text) == "");
    }
    matrix::report(matrix::Name::fuzz_inputs, files.size());
}

template <class Broken>
void check_all_cut_off(const std::vector<Input> &files, std::size_t longest, Broken broken) {
    for (const auto &[name, text] : files) {
        if (name.find("/found/") != std::string::npos) continue;
        for (std::size_t length = 0; length < std::min(text.size(), longest); length += 3) {
            const std::string wrong = broken(text.substr(0, length));
            if (wrong.empty()) continue;  // Catch2's assertions are slow for so many rounds
            INFO(name << " cut off at " << length);
            FAIL(wrong);
        }
    }
}

}  // namespace curb::fuzz
