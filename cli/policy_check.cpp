// `curb policy check` and `curb policy schema`: what policy files may say.
#include <cstdio>

#include "commands.hpp"
#include "config/load.hpp"
#include "config/schema.hpp"
#include "json.hpp"
#include "policy_source.hpp"
#include "terminal.hpp"

namespace curb::cli {
namespace {

config::Diagnostics check(const std::string &file) {
    const auto text = file == "-" ? read_standard_input() : config::read_file(file);
    if (!text) return {text.error()};
    const auto document = config::parse(*text, file == "-" ? "<stdin>" : file);
    return document ? config::Diagnostics() : document.error();
}

void print_text(const std::string &file, const config::Diagnostics &wrong) {
    if (wrong.empty()) print(file + ": valid\n");
    for (const config::Diagnostic &one : wrong) std::fprintf(stderr, "%s\n", one.text().c_str());
}

void print_json(const std::string &file, const config::Diagnostics &wrong) {
    print(json::object({{"file", json::text(file)},
                        {"valid", json::flag(wrong.empty())},
                        {"read", json::flag(exit_status(wrong) != 2)},
                        {"diagnostics", json::diagnostics(wrong)}}) +
          "\n");
}

}  // namespace

int policy_check(const CheckOptions &options) {
    int status = 0;
    for (const std::string &file : options.files) {
        const config::Diagnostics wrong = check(file);
        (options.json ? print_json : print_text)(file, wrong);
        status = std::max(status, exit_status(wrong));
    }
    return status;
}

int policy_schema() {
    print(config::schema());
    return 0;
}

}  // namespace curb::cli
