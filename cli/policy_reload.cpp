// `curb policy reload`: has a running process read its policy's files again, and prints what came of it.
#include <chrono>
#include <cstdio>

#include "ask.hpp"
#include "commands.hpp"
#include "control/client.hpp"
#include "json.hpp"
#include "policy/words.hpp"

namespace curb::cli {
namespace {

using namespace std::chrono_literals;

// Its files may be on a network.
constexpr auto kReloadPatience = 15s;

std::string json_of(int pid, const control::ReloadReport &report) {
    const auto texts = [](const std::vector<std::string> &lines) { return json::list(lines, json::text); };
    return json::object({{"pid", std::to_string(pid)},
                         {"file", json::text(report.file)},
                         {"rule", json::text(report.rule)},
                         {"changes", texts(report.changes)},
                         {"notes", texts(report.notes)},
                         {"errors", texts(report.errors)}});
}

void print(int pid, const control::ReloadReport &report) {
    std::string head = control::process_text(pid) + ": ";
    head += report.file.empty() ? "the machine's ceiling" : report.file;
    if (!report.errors.empty())
        head += " cannot be used as it is; the last good policy stays in force";
    else if (report.changes.empty())
        head += " says what was in force already";
    else
        head += " is in force";
    if (report.errors.empty() && !report.rule.empty()) head += ", with " + report.rule;
    std::printf("%s\n", policy::plain(head).c_str());
    for (const std::string &line : report.changes) std::printf("  %s\n", policy::plain(line).c_str());
    for (const std::string &line : report.notes) std::printf("  note: %s\n", policy::plain(line).c_str());
    for (const std::string &line : report.errors) complain(policy::plain(line));
}

}  // namespace

int policy_reload(const ReloadOptions &options) {
    const int pid = options.pid;
    const auto report =
        report_in<control::ReloadReport>(pid, control::ask(pid, control::ReloadRequest(), kReloadPatience));
    if (options.json)
        std::printf("%s\n", (report ? json_of(pid, *report) : error_json(pid, report.error())).c_str());
    else if (report)
        print(pid, *report);
    else
        complain(policy::plain(report.error()));
    return report && report->errors.empty() ? 0 : 1;
}

}  // namespace curb::cli
