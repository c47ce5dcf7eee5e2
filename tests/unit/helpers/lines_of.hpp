// The lines of a text, without their ends.
#pragma once

#include <string>
#include <vector>

inline std::vector<std::string> lines_of(const std::string &text) {
    std::vector<std::string> out;
    for (std::size_t begin = 0, end = 0; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1)
        out.push_back(text.substr(begin, end - begin));
    return out;
}
