// `curb report`: a recorded run as a page, a picture, lines or figures.
#include <sys/stat.h>

#include <cstdio>
#include <filesystem>

#include "commands.hpp"
#include "policy/words.hpp"
#include "replace_file.hpp"
#include "report_json.hpp"
#include "terminal.hpp"
#include "pages.hpp"

namespace curb::cli {
namespace {

enum class Form { html, svg, unknown };

Form form_of(const std::string &file) {
    const std::string lower = policy::lower_case(file);
    if (lower.ends_with(".html") || lower.ends_with(".htm")) return Form::html;
    return lower.ends_with(".svg") ? Form::svg : Form::unknown;
}

// As any program's new files.
mode_t mode_of_new_files() {
    const mode_t mask = ::umask(0);
    ::umask(mask);
    return 0666 & ~mask;
}

}  // namespace

int report(const ReportOptions &options) {
    const Form form = options.output ? form_of(*options.output) : Form::unknown;
    if (options.output && form == Form::unknown) {
        complain("report: " + policy::quote(policy::one_line(*options.output)) +
                 " says not what to write; name a file that ends in .html (a page) or .svg (a picture)");
        return kFailure;
    }
    std::error_code ignored;
    if (options.output && std::filesystem::equivalent(options.trace, *options.output, ignored)) {
        complain("report: " + policy::quote(policy::one_line(*options.output)) +
                 " is the trace itself; name another file");
        return kFailure;
    }
    const auto recording = read_trace(options.trace);
    if (!recording) {
        complain("report: " + recording.error());
        return 1;
    }
    const Summary summary = summarise(*recording);
    if (options.output) {
        const std::string text = form == Form::html ? html_page(*recording, summary) : svg_picture(*recording, summary);
        if (const auto fault = replace_file(*options.output, text, mode_of_new_files())) {
            complain("report: " + *fault);
            return kFailure;
        }
    }
    for (const std::string &one : recording->missing) complain("report: " + recording->name + ": " + one);
    if (options.json)
        print(report_json(*recording, summary) + "\n");
    else if (!options.output)
        print(text_report(*recording, summary));
    return 0;
}

}  // namespace curb::cli
