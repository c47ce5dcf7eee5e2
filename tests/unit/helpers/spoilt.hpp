// Lines as transmission or a full disk may spoil them.
#pragma once

#include <string>

#include "catch.hpp"

// Checks that the parser refuses the line cut off anywhere, and that it reads or refuses it, with a reason, if any one
// byte is changed.
template <class Parse>
void check_spoilt(const std::string &line, Parse parse) {
#ifdef CURB_SANITIZED
    constexpr std::size_t kStride = 7;  // a parse takes forty times as long
#else
    constexpr std::size_t kStride = 1;
#endif
    for (std::size_t length = 1; length < line.size(); length += kStride) CHECK(!parse(line.substr(0, length)));
    for (std::size_t i = 0; i < line.size(); i += kStride) {
        for (const char c : {'\0', '"', '{', '}', '9', '-', '.', ',', '\x80', '\n'}) {
            std::string changed = line;
            changed[i] = c;
            const auto read = parse(changed);
            if (!read) CHECK(!read.error().empty());
        }
    }
}
