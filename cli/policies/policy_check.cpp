// `curb policy check`: whether policy files are valid.
#include <cstdio>

#include "command.hpp"
#include "config/load.hpp"
#include "json.hpp"
#include "policy_advice.hpp"
#include "policy_source.hpp"
#include "terminal.hpp"

namespace curb::cli {
namespace {

struct CheckOptions {
    std::vector<std::string> files;
    bool json = false;

    void declare(Options &takes) {
        takes.json(json);
        takes.arguments("FILE", files, "Policy file; -: standard input");
    }
};

struct Checked {
    config::Diagnostics wrong, warnings;
};
Checked check(const std::string &file) {
    const auto text = file == "-" ? read_standard_input() : config::read_file(file);
    if (!text) return {{text.error()}, {}};
    const auto document = config::parse(*text, file == "-" ? "<stdin>" : file);
    if (!document) return {document.error(), {}};
    return {{}, advice(*document)};
}

void print_text(const std::string &file, const Checked &checked) {
    if (checked.wrong.empty()) print(file + ": valid\n");
    for (const config::Diagnostic &one : checked.wrong) std::fprintf(stderr, "%s\n", one.text().c_str());
    for (config::Diagnostic one : checked.warnings) {
        one.message.insert(0, "warning: ");
        std::fprintf(stderr, "%s\n", one.text().c_str());
    }
}

void print_json(const std::string &file, const Checked &checked) {
    print(json::object({{"file", json::text(file)},
                        {"valid", checked.wrong.empty()},
                        {"read", exit_status(checked.wrong) != 2},
                        {"diagnostics", diagnostics_json(checked.wrong)},
                        {"warnings", diagnostics_json(checked.warnings)}}) +
          "\n");
}

int policy_check(const CheckOptions &options) {
    int status = 0;
    for (const std::string &file : options.files) {
        const Checked checked = check(file);
        (options.json ? print_json : print_text)(file, checked);
        status = std::max(status, exit_status(checked.wrong));
    }
    return status;
}

}  // namespace

extern const Command kPolicyCheck{
    .group = "policy",
    .name = "check",
    .line = "Say whether policies are valid, or every error and its place",
    .help = R"(
Warnings are of what is valid and hardly meant, such as a pattern that looks like a regular expression; they do not count.

Exit status 0: all are valid, 1: some are not, 2: some cannot be read.

Examples:
  curb policy check job.json
  curb policy check --json *.json             one answer a line
  generate-policy | curb policy check -)",
    .takes = takes<CheckOptions, policy_check>,
};

}  // namespace curb::cli
