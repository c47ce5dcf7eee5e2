// `curb report`: shows a recorded run as a page, a picture, lines or JSON.
#include <sys/stat.h>

#include <filesystem>

#include "command.hpp"
#include "messages.hpp"
#include "pages.hpp"
#include "policy/values/words.hpp"
#include "replace_file.hpp"
#include "terminal.hpp"

namespace curb::cli {
namespace {

struct ReportOptions {
    std::string trace;  // "-": standard input
    std::optional<std::string> output;
    bool json = false;

    void declare(Options &takes) {
        takes.argument("TRACE", trace, "Trace, or memory snapshot of PyTorch; -: standard input");
        takes.option("-o,--output", output, "FILE", "Write this file: .html (a page) or .svg (a picture)");
        takes.json(json);
    }
};

// Returns the mode that new files get under this umask.
mode_t mode_of_new_files() {
    const mode_t mask = ::umask(0);
    ::umask(mask);
    return 0666 & ~mask;
}

int report(const ReportOptions &options) {
    const std::string file = options.output.value_or(""), lower = policy::lower_case(file);
    const std::string quoted = policy::quote(policy::one_line(file));
    const bool is_page = lower.ends_with(".html");
    if (options.output && !is_page && !lower.ends_with(".svg"))
        return failed("report: " + quoted +
                      " does not say what to write; name a file that ends in .html (a page) or .svg (a picture)");
    std::error_code ignored;
    if (options.output && std::filesystem::equivalent(options.trace, file, ignored))
        return failed("report: " + quoted + " is the trace itself; name another file");
    const auto recording = read_trace(options.trace, true);
    if (!recording) return failed("report: " + recording.error(), 1);
    const Summary summary = summarise(*recording);
    if (options.output) {
        const std::string text = is_page ? html_page(*recording, summary) : svg_picture(*recording, summary);
        if (const auto fault = replace_file(*options.output, text, mode_of_new_files()))
            return failed("report: " + *fault);
    }
    for (const std::string &one : recording->missing) say::warning("report: " + recording->name + ": " + one);
    if (options.json)
        print_line(report_json(*recording, summary));
    else if (!options.output)
        print_text(text_report(*recording, summary));
    return 0;
}

}  // namespace

extern const Command kReport{
    .name = "report",
    .line = "Show a recorded run: a page, a picture, or lines",
    .help = R"(
The page is one file and loads nothing. It shows every peak, refusal and release, also of long runs. If the trace is cut
off or lacks events, the report names what is missing. With call stacks (curb run --stacks) it shows who allocated the
memory at the peak. Also reads memory snapshots of PyTorch (torch.cuda.memory._dump_snapshot), which are pickles: curb
reads their data and runs nothing.

Exit status 0; 1: the trace cannot be read; 125: wrong arguments, or FILE cannot be written.

Examples:
  curb report curb-4711.trace.json                 lines on standard output
  curb report curb-4711.trace.json -o run.html     a page for browsers
  curb report curb-4711.trace.json -o run.svg      a picture for papers
  curb report --json curb-4711.trace.json | jq '.gpus[0].peak.bytes')",
    .takes = takes<ReportOptions, report>,
};

}  // namespace curb::cli
