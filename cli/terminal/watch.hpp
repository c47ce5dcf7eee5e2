// Prints the same answer again and again, until Ctrl-C.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "terminal/terminal.hpp"

namespace curb::cli {

struct Frame {
    std::string text;
    int status = 0;
    bool last = false;  // ends the watch
};

// Redraws in place if the terminal can, and restores the screen; else prints one frame after the other, with a blank
// line between. Each begins with `divider`. Returns the exit status: 0 after Ctrl-C, else that of the last frame.
int watch(std::chrono::milliseconds every, const std::function<std::string()> &divider,
          const std::function<Frame(const Screen &)> &frame);

}  // namespace curb::cli
