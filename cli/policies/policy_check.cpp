// `curb policy check` and `curb policy schema`: what policy files may say.
#include <cstdio>

#include "commands.hpp"
#include "config/load.hpp"
#include "config/schema.hpp"
#include "json.hpp"
#include "policy_advice.hpp"
#include "policy_source.hpp"
#include "terminal.hpp"

namespace curb::cli {
namespace {

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
                        {"valid", json::flag(checked.wrong.empty())},
                        {"read", json::flag(exit_status(checked.wrong) != 2)},
                        {"diagnostics", json::diagnostics(checked.wrong)},
                        {"warnings", json::diagnostics(checked.warnings)}}) +
          "\n");
}

}  // namespace

int policy_check(const CheckOptions &options) {
    int status = 0;
    for (const std::string &file : options.files) {
        const Checked checked = check(file);
        (options.json ? print_json : print_text)(file, checked);
        status = std::max(status, exit_status(checked.wrong));
    }
    return status;
}

int policy_schema() {
    print(config::schema());
    return 0;
}

}  // namespace curb::cli
