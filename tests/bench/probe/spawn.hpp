// Programs that are started and waited for.
#pragma once

#include <string>
#include <vector>

namespace bench {

// Runs the command, which is found as a shell finds it, with its output thrown away and with this environment. Throws
// Cannot, if it does not end with status 0.
void run(const std::vector<std::string> &command, const std::vector<std::string> &environment);

// This process's environment, without what would preload anything.
std::vector<std::string> bare_environment();

}  // namespace bench
