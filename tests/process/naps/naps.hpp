// Helpers for programs that nap on a simulated machine.
#pragma once

#include <signal.h>

#include <future>

#include "simulated.hpp"

// Returns an environment with a policy. `suspend` has the members of its object "suspend"; with "deep" among them curb
// moves what it can itself, else the driver moves all memory, at once. `more` has further members of the policy, each
// followed by a comma.
inline Environment napping(const Machine &machine, const std::string &suspend = R"("idle": "200ms")",
                           const std::string &more = "") {
    const bool is_light = suspend.find("deep") != std::string::npos;
    const std::string light = suspend.empty() || is_light ? "" : R"("light": false, )";
    const std::string policy =
        machine.write("policy.json", R"({ "version": 1, )" + more + R"( "log": { "level": "info", "file": ")" +
                                         (machine.folder() / "nap.log").native() + R"(" }, "suspend": { )" + light +
                                         suspend + " } }");
    return under_policy(policy);
}
// Returns the log of the policy of napping().
inline std::string log_of(const Machine &machine) { return contents(machine.folder() / "nap.log"); }
inline bool is_out(const Machine &machine, const Program &program) {
    return within(30s, [&] { return machine.state(program.pid()) == "checkpointed"; });
}
// Null if the process has no naps, or does not answer within ten seconds: on a busy machine curb ps may give it up.
inline Json nap_of(const Machine &machine, const Program &program) {
    Json nap;
    within(10s, [&] {
        const Json all = Json::parse(machine.curb({"ps", "--json", program.id()}).out);
        for (const Json &process : all["processes"]) {
            if (process["pid"] != program.pid() || !process["status"].is_object()) continue;
            nap = process["status"]["nap"];
            return true;
        }
        return false;
    });
    return nap;
}
inline std::int64_t held_by_books(const Machine &machine, const Program &program) {
    const Json all = Json::parse(machine.curb({"ps", "--json", program.id()}).out);
    for (const Json &gpu : all["gpus"])
        for (const Json &use : gpu["uses"])
            if (use["pid"] == program.pid() && !use["books"].is_null()) return use["books"]["held"];
    return -1;
}
// Returns the PID of the helper of a napping process; 0 if it has none.
inline pid_t helper_of(pid_t pid) {
    for (const auto &entry : fs::directory_iterator("/proc")) {
        std::ifstream file(entry.path() / "cmdline");
        std::string words;
        std::getline(file, words, '\xff');  // all of it; none if the process has just ended
        if (words.find(std::string("--nap\0", 6)) == std::string::npos) continue;
        if (words.ends_with('\0' + std::to_string(pid) + '\0')) return std::stoi(entry.path().filename());
    }
    return 0;
}
// Waits for the helper of a napping program. Returns its pid.
inline pid_t helper_of_napping(const Machine &machine, const Program &program) {
    REQUIRE(is_out(machine, program));
    REQUIRE(within(10s, [&] { return helper_of(program.pid()) != 0; }));
    return helper_of(program.pid());
}
// Has the program end by itself. Kills it if it hangs.
inline void ends(Program &program) {
    auto status = std::async(std::launch::async, [&] { return program.finish(); });
    const bool in_time = status.wait_for(30s) == std::future_status::ready;
    CHECK(in_time);
    if (!in_time) program.kill(SIGKILL);
    CHECK(status.get() == 0);
}
// Returns the text of /proc/meminfo on a host of 64 GiB.
inline std::string meminfo(int available_gib) {
    return "MemTotal: 67108864 kB\nMemAvailable: " + std::to_string(available_gib << 20) + " kB\n";
}
