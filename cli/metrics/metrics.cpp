// `curb metrics`: prints the figures of `curb ps` for Prometheus.
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "command/command.hpp"
#include "machine/sim.hpp"
#include "machine/view.hpp"
#include "metrics/families.hpp"
#include "terminal/messages.hpp"
#include "terminal/replace_file.hpp"
#include "terminal/terminal.hpp"

namespace curb::cli {
namespace {

struct MetricsOptions {
    std::optional<std::string> textfile;
    bool sim = false;

    void declare(Options &takes) {
        takes.sim(sim);
        takes.option("--textfile", textfile, "FILE", "Write them to this file, for node_exporter's collector");
    }
};

constexpr auto kMetricsPatience = std::chrono::seconds(1);  // far below Prometheus's scrape timeout, 10 s

int metrics(const MetricsOptions &options) {
    if (const auto fault = use_sim(options.sim)) return failed(*fault, 1);
    const std::string text = text_of(families_of(poll_all(kMetricsPatience), CURB_VERSION));
    std::optional<std::string> fault;
    if (options.textfile) {
        fault = replace_file(*options.textfile, text);
    } else if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
        if (errno == EPIPE) return 1;
        fault = std::string("standard output cannot be written: ") + std::strerror(errno);
    }
    if (fault) say::error(*fault);
    return fault ? 1 : 0;
}

}  // namespace

extern const Command kMetrics{
    .name = "metrics",
    .line = "Print figures of processes and GPUs for Prometheus",
    .help = R"(
Prints, in Prometheus's text format, what capped processes hold and may hold of each GPU, what was refused and released,
and NVML's own figures beside these. What is not known is absent, not 0. docs/METRICS.md (in share/doc/curb/) has every series,
and how to scrape them.

--textfile is for node_exporter's textfile collector: the text is written beside FILE and renamed over it, so that no
half file is ever read. If that fails, FILE stays as it was.

Processes are those that can be asked: of this user, for root those of all. Other processes have NVML's figures only.

Exit status 0: written, 1: it could not be written.

Examples:
  curb metrics                                on standard output
  curb metrics --textfile /var/lib/prometheus/node-exporter/curb.prom)",
    .takes = takes<MetricsOptions, metrics>,
};

}  // namespace curb::cli
