// `curb policy check` and `curb policy schema`: what policy files may say.
#include <cstdio>

#include "commands.hpp"
#include "config/load.hpp"
#include "config/schema.hpp"
#include "json.hpp"
#include "policy/words.hpp"
#include "policy_source.hpp"

namespace curb::cli {
namespace {

struct Checked {
    config::Diagnostics diagnostics;
    config::Diagnostics notes;
};

Checked check(const std::string &file) {
    const auto text = file == "-" ? read_standard_input() : config::read_file(file);
    if (!text) return {{text.error()}, {}};
    const auto document = config::parse(*text, file == "-" ? "<stdin>" : file);
    return document ? Checked{{}, document->notes} : Checked{document.error(), {}};
}

// "job.json:7:5: note: /trace/file: accepted, but has no effect in this version of curb"
std::string note_text(const config::Diagnostic &note) {
    return config::Place{note.file, note.line, note.column}.text() + ": note: " + policy::one_line(note.pointer) +
           ": " + note.message;
}

void print_text(const std::string &file, const Checked &checked) {
    if (checked.diagnostics.empty()) std::printf("%s: valid\n", file.c_str());
    for (const config::Diagnostic &one : checked.diagnostics) std::fprintf(stderr, "%s\n", one.text().c_str());
    for (const config::Diagnostic &note : checked.notes) std::fprintf(stderr, "%s\n", note_text(note).c_str());
}

void print_json(const std::string &file, const Checked &checked) {
    const std::string line = json::object({{"file", json::text(file)},
                                           {"valid", json::flag(checked.diagnostics.empty())},
                                           {"read", json::flag(exit_status(checked.diagnostics) != 2)},
                                           {"diagnostics", json::diagnostics(checked.diagnostics)},
                                           {"notes", json::diagnostics(checked.notes)}});
    std::printf("%s\n", line.c_str());
}

}  // namespace

int policy_check(const CheckOptions &options) {
    int status = 0;
    for (const std::string &file : options.files) {
        const Checked checked = check(file);
        (options.json ? print_json : print_text)(file, checked);
        status = std::max(status, exit_status(checked.diagnostics));
    }
    return status;
}

int policy_schema() {
    std::fputs(config::schema().c_str(), stdout);
    return 0;
}

}  // namespace curb::cli
