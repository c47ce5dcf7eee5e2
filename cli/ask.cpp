#include "ask.hpp"

#include <algorithm>

#include "json.hpp"
#include "policy/words.hpp"

namespace curb::cli {

policy::Result<int, std::string> parse_pid(const std::string &word) {
    const auto pid = policy::whole_number(word);
    if (!pid || *pid == 0) return policy::quote(word) + " is not the pid of a process";
    return *pid;
}

policy::Result<std::vector<int>, std::string> parse_pids(const std::vector<std::string> &words) {
    std::vector<int> out;
    for (const std::string &word : words) {
        const auto pid = parse_pid(word);
        if (!pid) return pid.error();
        if (std::find(out.begin(), out.end(), *pid) == out.end()) out.push_back(*pid);
    }
    return out;
}

std::string error_json(int pid, const std::string &error) {
    return json::object({{"pid", std::to_string(pid)}, {"error", json::text(error)}});
}

}  // namespace curb::cli
