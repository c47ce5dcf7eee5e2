// `curb report`: shows a recorded run as a page, a picture, lines or JSON.
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <span>

#include "command/command.hpp"
#include "page/pages.hpp"
#include "policy/values/words.hpp"
#include "terminal/messages.hpp"
#include "terminal/replace_file.hpp"
#include "terminal/terminal.hpp"
#include "trace/job.hpp"

namespace curb::cli {
namespace {

struct ReportOptions {
    std::vector<std::string> traces;  // "-": standard input
    std::optional<std::string> output;
    bool json = false;

    void declare(Options &takes) {
        takes.arguments("TRACE", traces, "Trace; of a job, those of all its processes; -: standard input");
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

// Sums up the processes of a job, with the smallest cap of each GPU that serves them.
Summary summarise_job(const Recording &together, std::span<const JobGpu> gpus) {
    Summary out = summarise(together);
    for (GpuSummary &gpu : out.gpus) {
        const JobGpu &of = gpus[static_cast<std::size_t>(gpu.gpu)];
        gpu.smallest_cap = smallest_job_cap(of.ranks);
        if (gpu.smallest_cap) gpu.paste = paste_of("--job-cap", gpus.size() == 1 ? "" : of.key, *gpu.smallest_cap);
    }
    return out;
}

bool is_page(const std::string &file) { return policy::lower_case(file).ends_with(".html"); }

// Returns why nothing is to be written to the file. Empty if nothing is wrong with it.
std::string fault_of(const std::string &file, const std::vector<std::string> &traces) {
    const std::string quoted = policy::quote(policy::one_line(file));
    if (!is_page(file) && !policy::lower_case(file).ends_with(".svg"))
        return quoted + " does not say what to write; name a file that ends in .html (a page) or .svg (a picture)";
    std::error_code ignored;
    for (const std::string &trace : traces)
        if (std::filesystem::equivalent(trace, file, ignored))
            return quoted + " is the trace itself; name another file";
    return {};
}

// Prints JSON or lines: of each process of a job, and of all together.
void print_report(bool json, std::span<const Recording> recordings, const Recording &whole, const Summary &summary) {
    const bool is_job = recordings.size() > 1;
    const auto each = [&](const char *between, auto show) {
        return policy::joined(recordings, between,
                              [=](const Recording &one) { return show(one, summarise_with_caps(one)); });
    };
    if (json && is_job)
        print_line("{\"traces\":[" + each(",", report_json) + "],\"job\":" + report_json(whole, summary) + "}");
    else if (json)
        print_line(report_json(whole, summary));
    else
        print_text((is_job ? each("\n", text_report) + "\n" : "") + text_report(whole, summary));
}

int report(const ReportOptions &options) {
    if (options.output)
        if (const std::string fault = fault_of(*options.output, options.traces); !fault.empty()) return failed(fault);
    const bool is_job = options.traces.size() > 1;
    const auto recordings = read_traces(options.traces);
    if (!recordings) return failed(recordings.error(), 1);
    const std::vector<JobGpu> gpus = gpus_of_job(*recordings);
    const Recording all = is_job ? together(*recordings, gpus) : Recording();
    const Recording &whole = is_job ? all : recordings->front();
    const Summary summary = is_job ? summarise_job(all, gpus) : summarise_with_caps(whole);
    if (options.output) {
        std::vector<Part> parts;
        if (is_job && is_page(*options.output))
            for (const Recording &one : *recordings) parts.push_back({&one, summarise(one)});
        const std::string text =
            is_page(*options.output) ? html_page(whole, summary, parts) : svg_picture(whole, summary);
        if (const auto fault = replace_file(*options.output, text, mode_of_new_files())) return failed(*fault);
    }
    for (const Recording &one : *recordings)
        for (const std::string &missing : one.missing) say::warning(one.name + ": " + missing);
    for (const std::string &one : what_they_lack(*recordings)) say::warning(one);
    if (!options.output || options.json) print_report(options.json, *recordings, whole, summary);
    return 0;
}

}  // namespace

extern const Command kReport{
    .name = "report",
    .line = "Show a recorded run: a page, a picture, or lines",
    .help = R"(
The page is one file and loads nothing. It shows every peak, refusal and release, also of long runs. If the trace is cut
off or lacks events, the report names what is missing. Several traces are those of one job: lines, JSON and pages show
all together and each process, pictures all together, in the order of their clocks. Times are local times, or those
since the beginning if the trace has no time of day. The smallest cap is an option to
paste: it would have served the run as the only limit. With call stacks (curb run --stacks) it shows who allocated the
memory at the peak.

Exit status 0; 1: the trace cannot be read; 125: wrong arguments, or FILE cannot be written.

Examples:
  curb report curb-4711.trace.json                 lines on standard output
  curb report curb-4711.trace.json -o run.html     a page for browsers
  curb report curb-4711.trace.json -o run.svg      a picture for papers
  curb report rank-*.json                          each process of a job, and all together
  curb report --json curb-4711.trace.json | jq '.gpus[0].peak.bytes')",
    .takes = takes<ReportOptions, report>,
};

}  // namespace curb::cli
